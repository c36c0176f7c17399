"""What the engine tells the world about each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from tidegate.control.controls import Controls

SILENCE = 10.0
"""Seconds after which a source without rows is named: one that is silent for less may have little to say."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One committed batch. Times are in seconds, rates in rows per second."""

    pipeline: str
    batch_id: int
    finished_at: datetime
    """When the output of the batch was visible (UTC)."""
    cut: Mapping[str, Any]
    """Source name -> {"start": offset, "end": offset}."""
    rows_in: int
    rows_out: int
    dead_letters: int
    input_rate: float
    """Rows per second that arrive at the sources: rows taken plus growth of the lag, over time."""
    rows_per_second: float
    """Rows taken over the time of the batch."""
    batch_seconds: float
    """The whole batch, from the trigger to Spark's own commit."""
    interval_seconds: float
    phases: Mapping[str, float]
    """Phase -> seconds: offsets, planning, wal, begin, write, prepare, ledger, publish, commit-state,
    commit. Those of the nodes (begin, prepare, commit-state) take the slowest one's time."""
    lag: int | None
    """Rows that wait in the sources beyond the cut; None when a source cannot tell."""
    limit: int | None
    """Rows that the next batch may take; None without admission control."""
    latency_p50: float | None
    """From event to visible output; None without an event time."""
    latency_p99: float | None
    watermark: datetime | None
    """The watermark that held in this batch (UTC)."""
    parallelism: int
    tries: int = 1
    catching_up: float | None = None
    """Seconds that batches may take while rows wait and the fixed cost of a batch would fill the interval;
    None when they keep to the interval."""
    sinks: Mapping[str, int] = field(default_factory=dict)
    """Sink step -> rows written."""
    late: int = 0
    """Rows that came after their window had been closed."""
    state_rows: int = 0
    """Rows of state that the batch wrote."""
    state_bytes: int = 0
    """What the durable log grew by."""
    state_wire: int = 0
    """Bytes of keys and rows that went between tasks and state nodes."""
    state_wire_remote: int = 0
    """Those of them that went between a task and a node on another host."""
    state_nodes: int = 0
    """State nodes that own key groups."""
    state_local: int = 0
    """Keys looked up that their node had."""
    state_remote: int = 0
    """Keys looked up that their node had to ask the old owner for: state is on the move."""
    waiting_files: int | None = None
    """Files that wait in the folders of `Files` sources; None without such a source."""
    waiting_bytes: int | None = None
    rescale: str | None = None
    """The phase of the rescale under way; None without one."""
    ahead: int = 0
    """Rows among the dead letters whose event time was too far ahead (`engine.ahead`)."""
    idle: tuple[str, ...] = ()
    """Sources that the watermark did not wait for: they have been silent for `engine.idle`, or are at their
    end."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Source with event time -> seconds that it has been silent, once it has missed a batch."""

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values; moments in ISO 8601."""
        values = asdict(self)
        for name in ("finished_at", "watermark"):
            moment = values[name]
            values[name] = moment.isoformat() if moment is not None else None
        return values


Listener: TypeAlias = Callable[[BatchProgress], None]
"""Called in order, once per committed batch; it must not block."""


@runtime_checkable
class SteeringListener(Protocol):
    """A listener that also steers. Its `attach` gets the controls of the run before the query starts; what it
    raises ends the run. They are good until the run ends and may be used from any thread, `__call__` too."""

    def attach(self, controls: Controls) -> None: ...

    def __call__(self, progress: BatchProgress, /) -> None: ...
