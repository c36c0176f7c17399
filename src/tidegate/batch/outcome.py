"""What became of a batch: what its job wrote, and what it came to once visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.ledger.records import Cut
from tidegate.sinks.sink import Receipt
from tidegate.sources.source import Seen
from tidegate.state.fleet.nodes import Arrived, StateResult


@dataclass(frozen=True, slots=True)
class Written:
    """The output of an attempt, where nobody reads it yet."""

    receipts: Mapping[str, Receipt]
    """Place -> what publishing there needs."""
    rows: Mapping[str, int]
    """Sink step -> rows."""
    seen: Mapping[str, Seen]
    """Source -> what was read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch did, known once it is visible. Times are in seconds, event times in microseconds."""

    batch_id: int
    visible_at: float
    cut: Mapping[str, Cut]
    seen: Mapping[str, Seen]
    """Source -> what was read."""
    rows_out: Mapping[str, int]
    """Sink step -> rows."""
    watermark: int | None
    phases: Mapping[str, float]
    tries: int
    kept: StateResult | None = None
    """What it left in the state nodes; None without state."""
    idle: tuple[str, ...] = ()
    """Sources that its watermark did not wait for."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Source with event time -> seconds that it has been silent, once it has missed a batch."""

    @property
    def arrived(self) -> Arrived:
        """State that came from its old owners."""
        return self.kept.arrived if self.kept else Arrived()

    @property
    def rows_in(self) -> Mapping[str, int]:
        """Source -> rows."""
        return {name: seen.rows for name, seen in self.seen.items()}

    @property
    def dead_letters(self) -> int:
        return sum(seen.unreadable for seen in self.seen.values())

    @property
    def ahead(self) -> Mapping[str, int]:
        """Source -> rows among the dead letters whose event time was too far ahead."""
        return {name: seen.ahead for name, seen in self.seen.items() if seen.ahead}

    @property
    def latency_p50(self) -> float | None:
        """From event to visible output: the mean of the sources' medians, by rows."""
        timed = [(seen.rows, seen.median) for seen in self.seen.values() if seen.median is not None]
        total = sum(rows for rows, _ in timed)
        return sum(rows * (self.visible_at - at / 1e6) for rows, at in timed) / total if total else None

    @property
    def latency_p99(self) -> float | None:
        """From event to visible output: that of the slowest source."""
        oldest = [seen.oldest_percent for seen in self.seen.values() if seen.oldest_percent is not None]
        return self.visible_at - min(oldest) / 1e6 if oldest else None
