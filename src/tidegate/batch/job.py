"""The Spark job of a batch: every task stages its state, every output is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from tidegate.batch.outcome import Written
from tidegate.batch.outputs import Outputs
from tidegate.batch.ticket import Ticket
from tidegate.ledger.records import Cut
from tidegate.sinks.sink import Receipt
from tidegate.spark.frames import compute, merged
from tidegate.spark.query import RunningQuery
from tidegate.state.task.assignment import Assignment
from tidegate.translation.observation import seen
from tidegate.translation.translation import Translation


class SparkRecord(Protocol):
    """What keeps Spark's own record of a batch."""

    def sync(self, batch_id: int, starts: Sequence[Any], ends: Sequence[Any]) -> None:
        """Have it outlive a crash."""


@dataclass(frozen=True, slots=True)
class SparkJobs:
    """Runs the jobs of batches."""

    spark: SparkSession
    translation: Translation
    outputs: Outputs
    record: SparkRecord
    deadline: float | None
    """Seconds after which the Spark job of the first attempt is taken to hang; each further one has twice
    as long."""
    pool: Executor
    """For what is done beside a job."""
    places: Callable[[Assignment], tuple[str, ...]]
    """For each Spark partition the host on which its task should run, as Spark names it; none if it does not
    matter."""

    def run(
        self,
        rows: DataFrame,
        cut: Mapping[str, Cut],
        query: RunningQuery,
        parallelism: int,
        ticket: Ticket,
        assignment: Assignment | None,
    ) -> Written:
        """One attempt at a batch of these rows. StepError when the user's own code is sure to fail again."""
        sources = self.translation.sources
        if not all(step.source.splits_cuts for step in sources):  # There may be more, like those of a topic.
            rows = merged(rows, parallelism * len(sources))
        receipts: dict[str, Receipt] = {}
        counts: dict[str, int] = {}
        with (
            self.translation.attributing_errors(),
            self._timely(ticket),
            synced(self.record, ticket.batch_id, cut, self.pool, first=not self.outputs.staged),
            _held(self.translation, rows) as held,
        ):
            places = self.places(assignment) if assignment is not None else ()
            with self.translation.outputs(held, assignment, places) as outputs:
                for sink, frame in outputs.items():
                    receipt = receipts[sink.receipt_name] = self.outputs.write(sink, frame, ticket)
                    counts[sink.name] = receipt["rows"]
            # What sources can tell by themselves is not observed, and asking takes a few calls into Java.
            countable = all(step.source.countable for step in self.translation.sources)
            observed = {} if countable else query.observed()
            found = {
                step: seen(step, cut[step.name].start, cut[step.name].end, observed)
                for step in self.translation.sources
            }
            for source, frame in self.translation.unreadable(held, ticket.batch_id).items():
                if found[source].unreadable:  # A second look at the batch, only when it has to be.
                    receipts[source.receipt_name] = self.outputs.write(source, frame, ticket)
        return Written(receipts, counts, {step.name: each for step, each in found.items()})

    @contextmanager
    def _timely(self, ticket: Ticket) -> Iterator[None]:
        """End the Spark jobs of an attempt that takes longer than the deadline: the attempt fails."""
        if self.deadline is None:
            yield
            return
        context = self.spark.sparkContext
        tag = f"tidegate-{ticket.generation}-{ticket.batch_id}-{ticket.attempt}"
        context.addJobTag(tag)
        # Ending jobs ends their Python workers, so the next attempt has a slower start: it gets more time.
        allowed = self.deadline * 2 ** (ticket.attempt - 1)
        over = threading.Event()

        def end_jobs() -> None:
            pause = allowed
            while not over.wait(pause):
                context.cancelJobsWithTag(tag)
                pause = 1.0  # An attempt has several jobs, one after the other.

        watch = threading.Thread(target=end_jobs, name="deadline", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()
            context.removeJobTag(tag)


@contextmanager
def synced(
    record: SparkRecord, batch_id: int, cut: Mapping[str, Cut], pool: Executor, *, first: bool
) -> Iterator[None]:
    """Spark's own record of the batch is kept when the block ends: what is committed depends on it.

    `first`: before the block begins.
    """
    starts, ends = [part.start for part in cut.values()], [part.end for part in cut.values()]
    done = pool.submit(record.sync, batch_id, starts, ends)
    try:
        if first:
            done.result()
        yield
    finally:
        wait([done])
    done.result()


@contextmanager
def _held(translation: Translation, rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, held on to while several jobs read them."""
    if not translation.read_more_than_once:
        yield rows
        return
    held = rows.persist()
    try:
        if translation.needs_a_full_read:
            compute(held)
        yield held
    finally:
        held.unpersist()
