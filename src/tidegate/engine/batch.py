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
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.engine.query import RunningQuery
from tidegate.engine.reason import reason
from tidegate.engine.translate import Translation
from tidegate.engine.watermark import Watermark
from tidegate.errors import BatchError, FencedError
from tidegate.ledger.ledger import Entry, Ledger
from tidegate.pipeline.step import SinkStep, SourceStep
from tidegate.sinks.sink import Attempt, Receipt, SinkWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch did, known once it is visible. Times are in seconds, event times in microseconds."""

    batch_id: int
    visible_at: float
    cut: Mapping[str, Any]
    rows_in: Mapping[str, int]
    """Source -> rows."""
    rows_out: Mapping[str, int]
    """Sink step -> rows."""
    dead_letters: int
    quantiles: Mapping[str, tuple[int, int]]
    """Source -> the event times that 1 % and 50 % of its rows are older than."""
    watermark: int | None
    phases: Mapping[str, float]
    tries: int

    @property
    def latency_p50(self) -> float | None:
        """From event to visible output: the mean of the sources' medians, by rows."""
        total = sum(self.rows_in[name] for name in self.quantiles)
        ages = [
            self.rows_in[name] * (self.visible_at - mid / 1e6) for name, (_, mid) in self.quantiles.items()
        ]
        return sum(ages) / total if total else None

    @property
    def latency_p99(self) -> float | None:
        """From event to visible output: that of the slowest source."""
        return max((self.visible_at - early / 1e6 for early, _ in self.quantiles.values()), default=None)


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

    def run(self, rows: DataFrame, batch_id: int, query: RunningQuery) -> Outcome | None:
        """Carry one batch through; None when it had been committed before."""
        entry = self.ledger.get(batch_id)
        if entry is not None:
            log.info("batch %d was committed before; publishing it again", batch_id)
            self._publish(batch_id, entry.receipts)
            return None
        phases: dict[str, float] = {}
        with _timed(phases, "write"), self._kept(rows) as kept:
            receipts, counts, dead, tries = self._write(kept, batch_id, query)
        observed = query.observed()
        names = [step.name for step in self.translation.sources]
        measures = {name: observed.get(name, {}) for name in names}
        mark = self.watermark.micros
        advanced = self.watermark.advance(
            {name: m["newest"] for name, m in measures.items() if m.get("newest") is not None}
        )
        cut = self._cut(batch_id, query, names)
        with _timed(phases, "ledger"):
            self.ledger.append(
                Entry(
                    batch_id=batch_id,
                    generation=self.ledger.generation,
                    cut=cut,
                    event_times=dict(advanced.seen),
                    receipts=receipts,
                    limit=self.limit(),
                )
            )
        self.watermark = advanced
        with _timed(phases, "publish"):
            self._publish(batch_id, receipts)
        return Outcome(
            batch_id=batch_id,
            visible_at=time.time(),
            cut=cut,
            rows_in={name: m.get("rows") or 0 for name, m in measures.items()},
            rows_out=counts,
            dead_letters=dead,
            quantiles={name: tuple(m["quantiles"]) for name, m in measures.items() if m.get("quantiles")},
            watermark=mark,
            phases=phases,
            tries=tries,
        )

    @contextmanager
    def _kept(self, rows: DataFrame) -> Iterator[DataFrame]:
        """The rows, held on to while several jobs read them."""
        if not self.translation.read_more_than_once:
            yield rows
            return
        kept = rows.persist()
        try:
            yield kept
        finally:
            kept.unpersist()

    def _write(
        self, rows: DataFrame, batch_id: int, query: RunningQuery
    ) -> tuple[dict[str, Receipt], dict[str, int], int, int]:
        for number in range(1, self.tries + 1):
            try:
                receipts, counts = self._write_outputs(rows, batch_id)
                dead = self._write_dead_letters(rows, batch_id, query, receipts)
                return receipts, counts, dead, number
            except FencedError:
                raise
            except Exception as error:
                self._failed(error, batch_id, number, "write")
        raise AssertionError("unreachable: the last failed try raises")

    def _write_outputs(self, rows: DataFrame, batch_id: int) -> tuple[dict[str, Receipt], dict[str, int]]:
        receipts: dict[str, Receipt] = {}
        counts: dict[str, int] = {}
        for step, frame in self.translation.outputs(rows).items():
            receipt = self.writers[step].write(frame, self._attempt(batch_id))
            receipts[identity(step)] = receipt
            counts[step.name] = receipt["rows"]
        return receipts, counts

    def _write_dead_letters(
        self, rows: DataFrame, batch_id: int, query: RunningQuery, receipts: dict[str, Receipt]
    ) -> int:
        """A second look at the batch, only when it held rows that could not be read."""
        observed = query.observed()
        total = 0
        for step, frame in self.translation.unreadable(rows).items():
            count = observed.get(step.name, {}).get("unreadable") or 0
            if count:
                labelled = frame.select(
                    F.lit(batch_id).alias("batch_id"), F.lit(step.name).alias("source"), "reason", "raw"
                )
                receipts[identity(step)] = self.dead_letters[step].write(labelled, self._attempt(batch_id))
                total += count
        return total

    def _publish(self, batch_id: int, receipts: Mapping[str, Receipt]) -> None:
        writers = {identity(step): writer for step, writer in self.writers.items()}
        writers |= {identity(step): writer for step, writer in self.dead_letters.items()}
        for place, receipt in receipts.items():
            if place not in writers:
                continue  # The sink was taken out of the pipeline since.
            for number in range(1, self.tries + 1):
                try:
                    writers[place].publish(batch_id, receipt)
                    break
                except Exception as error:
                    self._failed(error, batch_id, number, f"publish to {place}")

    def _failed(self, error: Exception, batch_id: int, number: int, action: str) -> None:
        why = reason(error)
        log.warning("batch %d: %s failed, try %d of %d: %s", batch_id, action, number, self.tries, why)
        if number >= self.tries:
            raise BatchError(
                f"batch {batch_id}: {action} failed {number} times; the last time: {why}. "
                f"Start the pipeline again to go on with batch {batch_id}",
                batch_id=batch_id,
                tries=number,
            ) from error
        time.sleep(self.retry_wait)

    def _attempt(self, batch_id: int) -> Attempt:
        self._number += 1
        return Attempt(batch_id, self.ledger.generation, self._number)

    def _cut(self, batch_id: int, query: RunningQuery, names: list[str]) -> dict[str, Any]:
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


@contextmanager
def _timed(phases: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    phases[name] = time.perf_counter() - start
