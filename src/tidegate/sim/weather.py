"""How rough a simulated run is."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances, each from 0 to 1. Calm unless told otherwise."""

    events: float = 0.05
    """Of something happening elsewhere, per step."""
    kinds: dict[str, float] = field(
        default_factory=lambda: {"background": 4.0, "deliver": 4.0, "straggle": 2.0, "thread": 4.0}
    )
    """What that is, by weight: methods of `World` with the same name. These here are no faults."""
    lost: float = 0.0
    """Of a call that does not arrive."""
    late: float = 0.0
    """Of one that arrives later, when its sender has given it up."""
    doubled: float = 0.0
    """Of one that arrives a second time later."""
    unanswered: float = 0.0
    """Of one whose answer is lost."""
    stragglers: float = 0.0
    """Of a task that is run twice, the other copy staging at any later time."""
    sink: float = 0.0
    """Of a sink that cannot be reached."""
    no_start: float = 0.0
    """Of nodes that do not start."""
    store: float = 0.0
    """Of a request to the object store that does not arrive, and of an answer that is lost."""

    @classmethod
    def drawn(cls, rng: Random, *, rescales: bool, hosts: int) -> Weather:
        """Any: runs differ in what goes wrong as much as in when it does. One of several hosts may be cut off
        or die alone."""
        noise = rng.choice((0.0, 0.01, 0.03))
        doubled = rng.choice((0.0, 0.05, 0.2))
        deaths = rng.choice((0.1, 0.4)) if rescales else 1.0  # Rescales come about only where drivers last.
        return cls(
            events=rng.choice((0.03, 0.06, 0.12)),
            kinds={
                "background": rng.choice((2.0, 8.0)),
                "deliver": rng.choice((2.0, 8.0)),
                "straggle": 3.0,
                "thread": 4.0,
                "end_node": deaths * rng.choice((0.0, 1.0, 2.0)),
                "hang_node": rng.choice((0.0, 0.5)),
                "end_driver": deaths * rng.choice((0.0, 0.5, 1.0)),
                "take_over": deaths * rng.choice((0.0, 0.5, 1.0)),
                "cut_power": deaths * rng.choice((0.0, 0.5, 1.0)),
                "fill_disk": rng.choice((0.0, 0.0, 0.3)),
                "ask": 3.0 if rescales else 0.0,
                **(_of_several(rng, deaths) if hosts > 1 else {}),
            },
            lost=noise,
            late=noise,
            doubled=doubled,
            unanswered=noise,
            stragglers=rng.choice((0.0, 0.05, 0.2)),
            sink=rng.choice((0.0, 0.05)),
            no_start=rng.choice((0.0, 0.1)),
            store=rng.choice((0.0, 0.005, 0.02)) if hosts > 1 else 0.0,
        )


def _of_several(rng: Random, deaths: float) -> dict[str, float]:
    return {
        "cut": rng.choice((0.0, 2.0, 5.0)),
        "heal": rng.choice((1.0, 3.0)),
        "leave": rng.choice((0.0, 2.0)),
        "end_host": deaths * rng.choice((0.0, 0.5, 1.0)),
    }
