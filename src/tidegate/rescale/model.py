"""What a rescale is: what is asked for, what would move, what became of it. Plain values, ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["restart", "eager", "lazy", "hybrid"]
STRATEGIES: tuple[Strategy, ...] = ("restart", "eager", "lazy", "hybrid")

RescalePhase = Literal["starting", "holding", "moving", "settled", "failed", "replaced"]
"""`starting`: new nodes come up while batches go on. `holding`: the next batch waits for the state.
`moving`: batches run on the new route, state follows. The last three are final."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A change that somebody wants. What is None stays as it is."""

    kind: Literal["scale", "rebalance", "drain"] = "scale"
    """`drain`: nodes move away from machines that are going."""
    nodes: int | None = None
    """State nodes."""
    parallelism: int | None = None
    """Spark partitions of sources and keyed steps; with state nodes rounded up, so that each task talks to
    one node."""
    strategy: Strategy | None = None
    step: str | None = None
    """The keyed step it is meant for; all of them share the nodes, so it is only checked."""
    bytes: int | None = None
    """For `rebalance`: move at most this many bytes of state."""

    @property
    def problem(self) -> str | None:
        """Why nobody can carry it out; None when somebody may."""
        resized = self.nodes is not None or self.parallelism is not None
        if self.kind != "scale":
            return f"a {self.kind} keeps nodes and parallelism; omit them" if resized else None
        if not resized:
            return "give nodes, parallelism or both"
        return None if self.bytes is None else "bytes is only for a rebalance"


@dataclass(frozen=True, slots=True)
class MoveLine:
    """Key groups that go from one node to another."""

    source: int
    target: int
    groups: str
    """As `0-15,32`."""
    rows: int
    """Rows of state, versions that no longer count among them."""
    bytes: int
    load: float
    """Share of all state accesses, 0 to 1."""


@dataclass(frozen=True, slots=True)
class PlanView:
    """What a change would do."""

    ask: Ask
    strategy: Strategy
    nodes: tuple[int, int]
    """Before and after."""
    parallelism: tuple[int, int]
    moves: tuple[MoveLine, ...]
    groups_moved: int
    bytes_moved: int
    busiest: tuple[float, float]
    """The busiest node's share of state accesses, before and after."""
    note: str
    """What to expect, in a sentence."""


@dataclass(frozen=True, slots=True)
class Moved:
    """State that came over."""

    keys: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from event to output, over the batches of one stretch; None without any."""

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Rescale:
    """One rescale or rebalance, from being asked for to being settled."""

    number: int
    ask: Ask
    strategy: Strategy
    phase: RescalePhase
    asked_at: str
    """ISO 8601, UTC."""
    nodes: tuple[int, int]
    parallelism: tuple[int, int]
    groups_moved: int = 0
    groups_left: int = 0
    """Groups whose state has not wholly arrived."""
    first_batch: int | None = None
    """The first batch on the new route."""
    seconds_to_first_batch: float | None = None
    """From being asked for to the end of that batch."""
    seconds_to_settled: float | None = None
    on_demand: Moved = Moved()
    background: Moved = Moved()
    before: Latency = Latency()
    during: Latency = Latency()
    """Of its first 1,000 batches."""
    after: Latency = Latency()
    longest_gap: float | None = None
    """Seconds between two outputs, the longest from the ask until it settled."""
    steady_gap: float | None = None
    """The same before: the median distance of outputs."""
    why: str | None = None
    """What went wrong."""

    @property
    def over(self) -> bool:
        return self.phase in ("settled", "failed", "replaced")
