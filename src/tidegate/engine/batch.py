"""One batch from its rows to its commit.

the ledger has it already      -> publish what its receipts say (Spark replays a committed batch)
write    every sink            -> where nobody reads it yet; tried again when a sink fails
append   to the ledger         -> the commit point
publish  every sink            -> visible
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.engine.query import RunningQuery
from tidegate.engine.reason import reason
from tidegate.engine.translate import Translation, seen
from tidegate.engine.watermark import Watermark
from tidegate.errors import BatchError, CheckpointError
from tidegate.ledger.ledger import Entry, Ledger
from tidegate.pipeline.step import SinkStep, SourceStep
from tidegate.sinks.sink import Attempt, Receipt, SinkWriter
from tidegate.sources.source import Seen

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch did, known once it is visible. Times are in seconds, event times in microseconds."""

    batch_id: int
    visible_at: float
    cut: Mapping[str, Any]
    seen: Mapping[str, Seen]
    """Source -> what was read."""
    rows_out: Mapping[str, int]
    """Sink step -> rows."""
    watermark: int | None
    phases: Mapping[str, float]
    tries: int

    @property
    def rows_in(self) -> Mapping[str, int]:
        """Source -> rows."""
        return {name: seen.rows for name, seen in self.seen.items()}

    @property
    def dead_letters(self) -> int:
        return sum(seen.unreadable for seen in self.seen.values())

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


@dataclass(slots=True)
class Batches:
    """Takes batches through the protocol, one after the other."""

    translation: Translation
    ledger: Ledger
    writers: Mapping[SinkStep, SinkWriter]
    dead_letters: Mapping[SourceStep, SinkWriter]
    watermark: Watermark
    tries: int
    retry_wait: float
    limit: Callable[[], int | None]
    """The limit in force, for the ledger: a restart begins with it."""
    _number: int = field(default=0, init=False)
    _most_tries: int = field(default=1, init=False)

    def run(self, rows: DataFrame, batch_id: int, query: RunningQuery) -> Outcome | None:
        """Carry one batch through; None when it had been committed before."""
        entry = self.ledger.get(batch_id)
        if entry is not None:
            log.info("batch %d was committed before; publishing it again", batch_id)
            self._publish(batch_id, entry.receipts)
            return None
        self._most_tries = 1
        phases: dict[str, float] = {}
        cut = self._cut(batch_id, query)
        with _timed(phases, "write"), self._kept(rows) as kept:
            written = self._write(kept, batch_id, cut, query)
        held = self.watermark.micros
        advanced = self.watermark.advance(
            {name: seen.newest for name, seen in written.seen.items() if seen.newest is not None}
        )
        with _timed(phases, "ledger"):
            self.ledger.append(
                Entry(
                    batch_id=batch_id,
                    generation=self.ledger.generation,
                    cut=cut,
                    event_times=dict(advanced.seen),
                    receipts=written.receipts,
                    limit=self.limit(),
                )
            )
        self.watermark = advanced
        with _timed(phases, "publish"):
            self._publish(batch_id, written.receipts)
        return Outcome(
            batch_id=batch_id,
            visible_at=time.time(),
            cut=cut,
            seen=written.seen,
            rows_out=written.rows,
            watermark=held,
            phases=phases,
            tries=self._most_tries,
        )

    @contextmanager
    def _kept(self, rows: DataFrame) -> Iterator[DataFrame]:
        """The rows, held on to while several jobs read them."""
        if not self.translation.read_more_than_once:
            yield rows
            return
        kept = rows.persist()
        try:
            if self.translation.needs_a_full_read:
                kept._jdf.queryExecution().toRdd().count()
            yield kept
        finally:
            kept.unpersist()

    def _write(self, rows: DataFrame, batch_id: int, cut: Mapping[str, Any], query: RunningQuery) -> _Written:
        receipts: dict[str, Receipt] = {}
        counts: dict[str, int] = {}
        for sink, frame in self.translation.outputs(rows).items():
            receipt = self._write_to(self.writers[sink], frame, batch_id, f"{sink.name} ({sink.describe()})")
            receipts[identity(sink)] = receipt
            counts[sink.name] = receipt["rows"]
        observed = query.observed()
        seen_of = {
            step: seen(step, cut[step.name]["start"], cut[step.name]["end"], observed)
            for step in self.translation.sources
        }
        for source, frame in self.translation.unreadable(rows).items():
            if seen_of[source].unreadable:  # A second look at the batch, only when it has to be.
                labels = (F.lit(batch_id).alias("batch_id"), F.lit(source.name).alias("source"))
                receipts[identity(source)] = self._write_to(
                    self.dead_letters[source],
                    frame.select(*labels, "reason", "raw"),
                    batch_id,
                    f"the dead letters of {source.name}",
                )
        return _Written(receipts, counts, {step.name: found for step, found in seen_of.items()})

    def _write_to(self, writer: SinkWriter, frame: DataFrame, batch_id: int, place: str) -> Receipt:
        def write() -> Receipt:
            self._number += 1
            return writer.write(frame, Attempt(batch_id, self.ledger.generation, self._number))

        return self._insist(batch_id, f"writing to {place}", write)

    def _publish(self, batch_id: int, receipts: Mapping[str, Receipt]) -> None:
        writers = {identity(step): writer for step, writer in self.writers.items()}
        writers |= {identity(step): writer for step, writer in self.dead_letters.items()}
        for place, receipt in receipts.items():
            if place not in writers:
                raise CheckpointError(
                    f"batch {batch_id} was committed with rows for {place}, which is no longer in the "
                    "pipeline; put that sink back to have them published, and take it out after that"
                )
            publish = partial(writers[place].publish, batch_id, receipt)
            self._insist(batch_id, f"publishing to {place}", publish)

    def _insist(self, batch_id: int, action: str, act: Callable[[], T]) -> T:
        """Do it, again and again when it fails, as often as the configuration allows."""
        for number in range(1, self.tries + 1):
            self._most_tries = max(self._most_tries, number)
            try:
                return act()
            except Exception as error:
                why = reason(error).rstrip(".")
                log.warning(
                    "batch %d: %s failed, try %d of %d: %s", batch_id, action, number, self.tries, why
                )
                if number == self.tries:
                    raise BatchError(
                        f"batch {batch_id}: {action} failed in {number} of {number} tries; the last: {why}. "
                        f"Start the pipeline again to go on with batch {batch_id}",
                        batch_id=batch_id,
                        tries=number,
                    ) from error
                time.sleep(self.retry_wait)
        raise AssertionError("unreachable: the last try returns or raises")

    def _cut(self, batch_id: int, query: RunningQuery) -> dict[str, Any]:
        names = [step.name for step in self.translation.sources]
        ends = query.offsets(batch_id) or [None] * len(names)
        starts = (query.offsets(batch_id - 1) if batch_id else None) or [None] * len(names)
        return {
            name: {"start": start, "end": end} for name, start, end in zip(names, starts, ends, strict=True)
        }


def identity(step: SinkStep | SourceStep) -> str:
    """What a receipt is filed under: the place, so that sinks may be declared in another order later."""
    if isinstance(step, SourceStep):
        return f"dead-letters:{step.name}"
    return step.sink.location or step.name


@dataclass(frozen=True, slots=True)
class _Written:
    """A batch that lies where nobody reads it yet."""

    receipts: dict[str, Receipt]
    rows: dict[str, int]
    seen: dict[str, Seen]


@contextmanager
def _timed(phases: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    phases[name] = time.perf_counter() - start
