"""What can be asked of a running pipeline, and what it answers. Plain values, ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from tidegate.rescale.model import Ask, PlanView, Rescale


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A state node of the pipeline."""

    index: int
    name: str
    address: str
    pid: int
    groups: str
    load: float
    """Share of all state accesses, 0 to 1."""
    bytes: int
    """What its key groups take in the log, about."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a pipeline is doing."""

    pipeline: str
    phase: Literal["starting", "running", "stopping"]
    batch_id: int | None
    """The latest committed batch."""
    rows_per_second: float | None
    batch_seconds: float | None
    interval_seconds: float
    latency_p50: float | None
    lag: int | None
    """Rows that wait in the sources; None when a source cannot tell."""
    parallelism: int
    route: int | None
    """Version of the route; None without state."""
    nodes: tuple[NodeLine, ...]
    steps: tuple[str, ...]
    """Names of the keyed steps, in the order of the plan."""
    rescale: Rescale | None = None
    """The one under way, or the latest."""
    waiting_files: int | None = None
    """Files that wait in the folders of `Files` sources; None without such a source."""
    waiting_bytes: int | None = None
    state_wire: int = 0
    """Bytes of keys and rows that went between tasks and state nodes in the latest batch."""
    state_wire_remote: int = 0
    """Those of them that went between a task and a node on another host."""


class Controls(Protocol):
    """What can be asked of a running pipeline. Safe to call from any thread; none waits for a batch.

    Raises ControlError, which changes nothing, for what is invalid, or cannot be done now.
    """

    def status(self) -> Status: ...

    def plan(self, ask: Ask) -> PlanView: ...

    def apply(self, ask: Ask) -> Rescale:
        """Set a scale or a rebalance going; it shows up in `history` at once."""

    def savepoint(self, place: str) -> str:
        """Copy the state after the latest committed batch; where it is."""

    def stop(self) -> None:
        """Finish the batch that is running, then end."""

    def history(self) -> tuple[Rescale, ...]:
        """All rescales of this run, oldest first."""
