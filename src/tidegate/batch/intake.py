"""The sources of a running pipeline: where each stands, and how much the next batch may take from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tidegate.batch.admission import Admission
from tidegate.ledger.records import Cut
from tidegate.pipeline.step import SourceStep
from tidegate.sources.source import Position, Taken
from tidegate.spark.query import RunningQuery


class Intake:
    """Positions and limits of the sources, in the order in which Spark numbers them."""

    def __init__(
        self, sources: Sequence[SourceStep], admission: Admission | None, cut: Mapping[str, Cut]
    ) -> None:
        self._sources = sources
        self._admission = admission
        self._positions = {name: Position(part.start, part.end) for name, part in cut.items()}
        self._waiting = 0.0
        """Rows that no batch has taken."""
        self._begun: float | None = None
        self._lag_before: int | None = None

    @property
    def limit(self) -> int | None:
        """Rows that the next batch may take; None without admission control."""
        return self._admission.limit if self._admission else None

    @property
    def catching_up(self) -> float | None:
        """Seconds that a batch may take to work off what waits; None if it keeps to the target."""
        return self._admission.catching_up(self._waiting) if self._admission else None

    @property
    def lag(self) -> int | None:
        """Rows that wait beyond the cut; None when a source cannot tell."""
        lags = [self._lag(step) for step in self._sources]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def done(self) -> bool:
        """Whether no source has anything left."""
        nowhere = Position(None, None)
        return all(step.source.done(self._positions.get(step.name, nowhere)) for step in self._sources)

    def moved(self, positions: Sequence[Position]) -> None:
        """Take over the positions that Spark reports after a batch."""
        self._positions = {
            step.name: position for step, position in zip(self._sources, positions, strict=True)
        }

    def arrived_per_second(self, rows: int, begun: float) -> float:
        """Input rate up to the batch that took `rows` and began at `begun`.

        The lag is that of the moment when the batch began, so between two batches as much arrived as
        the later one took and the lag grew by.
        """
        lag, before = self.lag, self._lag_before
        passed = begun - self._begun if self._begun is not None else 0.0
        grown = lag - before if lag is not None and before is not None else 0
        self._begun, self._lag_before = begun, lag
        return max(0.0, (rows + grown) / passed) if passed > 0 else 0.0

    def fills(self, rows: Mapping[str, int]) -> bool:
        """Whether a batch of these rows is about as large as it may be, so that more rows may wait."""
        return self._admission is not None and sum(rows.values()) > self._admission.limit / 2

    def split(self, query: RunningQuery, partitions: int) -> None:
        """Have each source split the cut of the next batch into so many partitions."""
        told = [number for number, step in enumerate(self._sources) if step.source.splits_cuts]
        query.split(partitions, by_limit=told)

    def adapt(
        self, query: RunningQuery, rows: Mapping[str, int], cut: Mapping[str, Cut], seconds: float
    ) -> None:
        """After a batch: learn from it, and share the new limit by what each source gave and still holds."""
        if self._admission is None or not sum(rows.values()):
            return
        lag = self.lag
        # Where a source cannot tell, a batch that is about as large as it may be has left more behind.
        self._waiting = lag if lag is not None else math.inf if self.fills(rows) else 0
        self._admission = self._admission.observe(sum(rows.values()), seconds)
        claims = {step.name: rows[step.name] + (self._lag(step) or 0) + 1 for step in self._sources}
        limits = []
        for number, step in enumerate(self._sources):
            taken = Taken(rows[step.name], query.checkpoint.source_files(number, cut[step.name].end))
            share = self._admission.limit * claims[step.name] // sum(claims.values())
            limits.append(step.source.limit(max(1, share), taken))
        query.limit(limits)

    def _lag(self, step: SourceStep) -> int | None:
        position = self._positions.get(step.name)
        return None if position is None else step.source.lag(position)
