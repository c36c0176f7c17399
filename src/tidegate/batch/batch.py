"""One batch from its rows to its commit: carries out what the batch protocol says."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate import faults
from tidegate.batch import protocol
from tidegate.batch.garbage import Garbage
from tidegate.batch.outcome import Outcome
from tidegate.batch.protocol import BatchProtocol, Event, Instruction
from tidegate.batch.ticket import Ticket
from tidegate.batch.time import Time
from tidegate.batch.watermark import Watermark
from tidegate.errors import BatchError, CheckpointError, FencedError, TidegateError
from tidegate.ledger.ledger import Entry, Ledger
from tidegate.pipeline.step import SinkStep, SourceStep
from tidegate.sinks.sink import Attempt, Receipt, SinkWriter
from tidegate.sources.source import Seen
from tidegate.spark.query import RunningQuery
from tidegate.spark.reasons import reason
from tidegate.state.fleet.nodes import Arrived, Kept, Nodes
from tidegate.state.log.manifest import StateManifest
from tidegate.translation.translation import Translation, seen

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Batches:
    """Takes batches through the protocol, one after the other."""

    spark: SparkSession
    translation: Translation
    ledger: Ledger
    writers: Mapping[SinkStep, SinkWriter]
    dead_letters: Mapping[SourceStep, SinkWriter]
    watermark: Watermark
    nodes: Nodes | None
    """None for a pipeline without state."""
    garbage: Garbage
    tries: int
    retry_wait: float
    deadline: float | None
    """Seconds after which the Spark job of the first attempt is taken to hang; each further one has twice
    as long."""
    limit: Callable[[], int | None]
    """The limit in force, for the ledger: a restart begins with it."""
    configured: tuple[int, int]
    """State nodes and parallelism of the configuration, for the ledger: a restart with the same ones keeps
    the route."""
    _number: int = field(default=0, init=False)

    def run(self, rows: DataFrame, batch_id: int, query: RunningQuery) -> Outcome | None:
        """Carry one batch through; None when it had been committed before."""
        entry = self.ledger.get(batch_id)
        if entry is not None:
            log.info("batch %d was committed before; publishing it again", batch_id)
        else:
            self.ledger.check_next(batch_id)
        batch = _Batch(self, rows, batch_id, query, entry)
        batch.carry_out()
        if entry is not None:
            return None
        self.garbage.collect(batch.manifest, self.nodes.route.version if self.nodes else 0)
        return batch.outcome()

    def is_committed(self, batch_id: int) -> bool:
        """Whether the batch is in the ledger: Spark is replaying it."""
        last = self.ledger.last
        return last is not None and batch_id <= last.batch_id

    @property
    def time(self) -> Time:
        """The event time of the next batch. It never goes back, not even after a restart with more grace."""
        closed = self.ledger.last.watermark if self.ledger.last else None
        known = [micros for micros in (closed, self.watermark.micros) if micros is not None]
        return Time(closed, max(known, default=None))

    def attempt(self, ticket: Ticket) -> Attempt:
        """A new attempt at writing to a sink."""
        self._number += 1
        return Attempt(ticket.batch_id, ticket.generation, self._number)

    def publish(self, batch_id: int, receipts: Mapping[str, Receipt]) -> int:
        """Make a committed batch visible; in how many tries."""
        writers = {identity(step): writer for step, writer in self.writers.items()}
        writers |= {identity(step): writer for step, writer in self.dead_letters.items()}
        most = 1
        for place, receipt in receipts.items():
            if place not in writers:
                raise CheckpointError(
                    f"batch {batch_id} was committed with rows for {place}, which is no longer in the "
                    "pipeline; put that sink back to have them published, and take it out after that"
                )
            publish = partial(writers[place].publish, batch_id, receipt)
            most = max(most, self._insist(batch_id, f"publishing to {place}", publish))
        return most

    def _insist(self, batch_id: int, action: str, act: Callable[[], None]) -> int:
        """Do it, again and again when it fails, as often as the configuration allows; how often it took."""
        for number in range(1, self.tries + 1):
            try:
                act()
                return number
            except Exception as error:
                why = f"{action} failed: {reason(error).rstrip('.')}"
                log.warning("batch %d: try %d of %d: %s", batch_id, number, self.tries, why)
                if number == self.tries:
                    raise gave_up(batch_id, number, why) from error
                time.sleep(self.retry_wait)
        raise AssertionError("unreachable: the last try returns or raises")


def gave_up(batch_id: int, tries: int, why: str) -> BatchError:
    """The error of a batch that failed as often as the configuration allows."""
    return BatchError(
        f"batch {batch_id}: {tries} of {tries} tries failed; the last: {why}. "
        f"Start the pipeline again to go on with batch {batch_id}",
        batch_id=batch_id,
        tries=tries,
    )


class _Batch:
    """One batch on its way: the protocol's shell."""

    def __init__(
        self, batches: Batches, rows: DataFrame, batch_id: int, query: RunningQuery, entry: Entry | None
    ) -> None:
        self._of, self._rows, self._id, self._query = batches, rows, batch_id, query
        self._committed = entry
        self._time = batches.time
        self._cut = _cut(batches.translation, batch_id, query)
        self._phases: dict[str, float] = {}
        self._tries = 1
        self._written: _Written | None = None
        self._kept: Kept | None = None
        self._cause: Exception | None = None
        nodes = batches.nodes
        self._protocol = BatchProtocol(
            generation=batches.ledger.generation,
            expected=nodes.expected if nodes else {},
            tries=batches.tries,
        )

    def carry_out(self) -> None:
        """Feed the protocol until it has nothing more to say."""
        events: deque[Event] = deque([protocol.Start(self._id, self._committed is not None)])
        with ThreadPoolExecutor(max_workers=8) as pool:
            while events:
                instructions = self._protocol.handle(events.popleft())
                if len(instructions) > 1:
                    events.extend(pool.map(self._do, instructions))
                else:
                    events.extend(map(self._do, instructions))

    @property
    def manifest(self) -> StateManifest | None:
        """What the state consists of after the batch; None without state."""
        return self._kept.manifest if self._kept else None

    def outcome(self) -> Outcome:
        """What the batch did."""
        assert self._written is not None
        kept = self._kept
        return Outcome(
            batch_id=self._id,
            visible_at=time.time(),
            cut=self._cut,
            seen=self._written.seen,
            rows_out=self._written.rows,
            watermark=self._time.watermark,
            phases=self._phases,
            tries=self._tries,
            late=kept.late if kept else 0,
            state_rows=kept.rows if kept else 0,
            state_bytes=kept.bytes if kept else 0,
            state_wire=kept.wire if kept else 0,
            arrived=kept.arrived if kept else Arrived(),
        )

    def _do(self, instruction: Instruction) -> Event:
        match instruction:
            case protocol.Begin(ticket, node):
                return self._guarded(ticket, "begin", partial(self._begin, ticket, node))
            case protocol.RunJob(ticket):
                return self._guarded(ticket, "write", partial(self._run_job, ticket))
            case protocol.Prepare(ticket, node):
                return self._guarded(ticket, "prepare", partial(self._prepare, ticket, node))
            case protocol.Append(ticket):
                with _timed(self._phases, "ledger"):
                    self._append(ticket)
                faults.reach("driver.appended", self._id)
                return protocol.Appended(ticket)
            case protocol.Commit(ticket, node):
                with _timed(self._phases, "commit-state"):
                    self._nodes.commit(node, ticket, self._time.watermark)
                return protocol.Committed(ticket, node)
            case protocol.Publish():
                return self._publish()
            case protocol.Heal(ticket):
                return self._heal(ticket)
            case protocol.GiveUp(batch_id, tries, why):
                raise gave_up(batch_id, tries, why) from self._cause
        raise AssertionError(f"unreachable: {instruction}")

    @property
    def _nodes(self) -> Nodes:
        assert self._of.nodes is not None
        return self._of.nodes

    def _guarded(self, ticket: Ticket, phase: str, act: Callable[[], Event]) -> Event:
        """A failure before the commit point is an event like any other; that of being replaced is not."""
        try:
            with _timed(self._phases, phase):
                return act()
        except FencedError:
            raise
        except Exception as error:
            self._cause = error
            why = str(error) if isinstance(error, _WriteError) else reason(error)
            return protocol.Failed(ticket, why.rstrip("."))

    def _begin(self, ticket: Ticket, node: int) -> Event:
        faults.reach("driver.begin", self._id)
        self._nodes.begin(node, ticket, self._time.watermark)
        faults.reach("driver.begun", self._id)
        return protocol.Begun(ticket, node)

    def _run_job(self, ticket: Ticket) -> Event:
        with self._timely(ticket), _held(self._of.translation, self._rows) as held:
            self._written = self._write(ticket, held)
        faults.reach("driver.written", self._id)
        return protocol.Written(ticket)

    def _prepare(self, ticket: Ticket, node: int) -> Event:
        staged = self._nodes.prepare(node, ticket)
        faults.reach("driver.prepared", self._id)
        return protocol.Prepared(ticket, node, staged)

    def _append(self, ticket: Ticket) -> None:
        of, written = self._of, self._written
        assert written is not None
        newest = {name: seen.newest for name, seen in written.seen.items() if seen.newest is not None}
        advanced = of.watermark.advance(newest)
        nodes = of.nodes
        self._kept = nodes.kept(self._id, self._time.watermark) if nodes else None
        of.ledger.append(
            Entry(
                batch_id=self._id,
                generation=of.ledger.generation,
                cut=self._cut,
                event_times=dict(advanced.seen),
                receipts=written.receipts,
                limit=of.limit(),
                watermark=self._time.watermark,
                state=self._state(),
                route={**nodes.route.to_json(), "configured": of.configured} if nodes else None,
            )
        )
        of.watermark = advanced
        if nodes and self._kept:
            nodes.committed(ticket, self._kept.manifest)

    def _state(self) -> dict[str, Any] | None:
        if self._of.nodes is None or self._kept is None:
            return None
        if not self._of.nodes.durable:
            return {"durable": False}
        return {**self._kept.manifest.to_json(), "meaning": self._of.translation.meaning}

    def _publish(self) -> Event:
        receipts = self._committed.receipts if self._committed else None
        if receipts is None:
            assert self._written is not None
            receipts = self._written.receipts
        faults.reach("driver.committed", self._id)
        with _timed(self._phases, "publish"):
            self._tries = max(self._tries, self._of.publish(self._id, receipts))
        faults.reach("driver.published", self._id)
        return protocol.Published(self._id)

    def _heal(self, ticket: Ticket) -> Event:
        failures = [event for event in self._protocol.story if isinstance(event, protocol.Failed)]
        log.warning(
            "batch %d: try %d of %d failed: %s", self._id, ticket.attempt, self._of.tries, failures[-1].why
        )
        self._tries = ticket.attempt + 1
        # A lost node is the cause, and it is put right; anything else may need a moment to pass.
        try:
            lost = self._of.nodes.heal() if self._of.nodes else 0
        except (TidegateError, OSError) as error:
            log.warning("batch %d: a lost node could not be replaced: %s", self._id, error)
            lost = 0  # The next attempt fails on it, and comes back here.
        if not lost:
            time.sleep(self._of.retry_wait)
        return protocol.Healed(ticket)

    @contextmanager
    def _timely(self, ticket: Ticket) -> Iterator[None]:
        """End the Spark jobs of an attempt that takes longer than the deadline: the attempt fails."""
        if self._of.deadline is None:
            yield
            return
        context = self._of.spark.sparkContext
        tag = f"tidegate-{ticket.generation}-{ticket.batch_id}-{ticket.attempt}"
        context.addJobTag(tag)
        # Ending jobs ends their Python workers, so the next attempt has a slower start: it gets more time.
        allowed = self._of.deadline * 2 ** (ticket.attempt - 1)
        over = threading.Event()

        def end_jobs() -> None:
            wait = allowed
            while not over.wait(wait):
                context.cancelJobsWithTag(tag)
                wait = 1.0  # An attempt has several jobs, one after the other.

        watch = threading.Thread(target=end_jobs, name="deadline", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()
            context.removeJobTag(tag)

    def _write(self, ticket: Ticket, rows: DataFrame) -> _Written:
        of = self._of
        receipts: dict[str, Receipt] = {}
        counts: dict[str, int] = {}
        assignment = of.nodes.assignment(ticket, self._time) if of.nodes else None
        with of.translation.outputs(rows, assignment) as outputs:
            for sink, frame in outputs.items():
                place = f"{sink.name} ({sink.describe()})"
                receipt = self._write_to(of.writers[sink], frame, ticket, place)
                receipts[identity(sink)] = receipt
                counts[sink.name] = receipt["rows"]
        observed = self._query.observed()
        seen_of = {
            step: seen(step, self._cut[step.name]["start"], self._cut[step.name]["end"], observed)
            for step in of.translation.sources
        }
        for source, frame in of.translation.unreadable(rows).items():
            if seen_of[source].unreadable:  # A second look at the batch, only when it has to be.
                labels = (F.lit(self._id).alias("batch_id"), F.lit(source.name).alias("source"))
                receipts[identity(source)] = self._write_to(
                    of.dead_letters[source],
                    frame.select(*labels, "reason", "raw"),
                    ticket,
                    f"the dead letters of {source.name}",
                )
        return _Written(receipts, counts, {step.name: found for step, found in seen_of.items()})

    def _write_to(self, writer: SinkWriter, frame: DataFrame, ticket: Ticket, place: str) -> Receipt:
        try:
            return writer.write(frame, self._of.attempt(ticket))
        except FencedError:
            raise
        except Exception as error:
            raise _WriteError(f"writing to {place} failed: {reason(error)}") from error


class _WriteError(Exception):
    """A sink's job failed; the message tells which and why."""


@contextmanager
def _held(translation: Translation, rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, held on to while several jobs read them."""
    if not translation.read_more_than_once:
        yield rows
        return
    held = rows.persist()
    try:
        if translation.needs_a_full_read:
            held._jdf.queryExecution().toRdd().count()
        yield held
    finally:
        held.unpersist()


def _cut(translation: Translation, batch_id: int, query: RunningQuery) -> dict[str, Any]:
    names = [step.name for step in translation.sources]
    ends = query.offsets(batch_id) or [None] * len(names)
    starts = (query.offsets(batch_id - 1) if batch_id else None) or [None] * len(names)
    return {name: {"start": start, "end": end} for name, start, end in zip(names, starts, ends, strict=True)}


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
    phases[name] = max(phases.get(name, 0.0), time.perf_counter() - start)
