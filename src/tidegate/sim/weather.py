"""How rough a simulated run is."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances, each from 0 to 1. Calm unless told otherwise."""

    faults: float = 0.0
    """Of a fault somewhere, per step; and of a driver that stops or sleeps, after each of its moves."""
    dying: float = 0.0
    """Of a node that dies of a request: it has done it, but nobody hears of it. A tenth for a task's."""
    oddities: float = 0.0
    """Of slow tasks, tasks run twice, partitions that nobody reads; each is a share of this."""
    noise: float = 0.0
    """That something happens to a message: it is lost, doubled or held up."""
    lost: float = 0.0
    doubled: float = 0.0
    release: float = 0.1
    """Of a message that was held up to arrive, per step."""
    merging: float = 0.02
    """Of a merge, per step."""
    rescaling: float = 0.1
    """Of a new route, per batch."""
    asking: float = 0.0
    """Of somebody who asks for a rescale, per step."""
    failing: float = 0.0
    """Of nodes that do not start."""

    @classmethod
    def drawn(cls, rng: Random) -> Weather:
        """Any: runs differ in what goes wrong as much as in when it does."""
        lost, doubled, noise = rng.choice(((0.4, 0.4, 0.15), (0.05, 0.8, 0.5), (0.05, 0.25, 0.3)))
        return cls(
            faults=rng.choice((0.0, 0.005, 0.02, 0.05)),
            dying=rng.choice((0.0, 0.02, 0.05)),
            oddities=rng.choice((0.0, 0.3, 1.0)),
            noise=noise * rng.choice((0.0, 0.2, 0.5, 1.0)),
            lost=lost,
            doubled=doubled,
            release=rng.choice((0.01, 0.1)),
            merging=rng.choice((0.02, 0.2)),
            rescaling=rng.choice((0.1, 0.5)),
        )


STORM = Weather(
    faults=0.02,
    dying=0.1,
    oddities=1.0,
    noise=0.6,
    lost=0.02,
    doubled=0.9,
    release=0.01,
    merging=0.2,
    rescaling=0.6,
)
"""Where broken variants do not last long."""

SURGE = Weather(
    faults=0.003,
    dying=0.003,
    oddities=0.5,
    noise=0.3,
    lost=0.4,
    doubled=0.3,
    release=0.02,
    merging=0.1,
    asking=0.02,
    failing=0.3,
)
"""Where broken rescales do not: calm enough for them to come about."""
