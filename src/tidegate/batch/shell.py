"""The batch protocol's shell: carries out the protocol's instructions, and reports back what happened.

It knows ledger, state nodes, watermark and garbage, and is given everything else it needs, so that it runs
without Spark, threads or a real clock:

`job(ticket, assignment)` runs one attempt at the batch: its tasks read and stage state as the assignment
    says (None for a pipeline without state), its outputs are where nobody reads them; it returns what was
    written. May raise anything: the attempt has failed, and the next one calls it with another ticket.
    A StepError would only happen again, and so would a StateLostError of the nodes: both end the run.
`publish(batch_id, place, receipt)` makes visible what an attempt wrote to one place. Called at least once for
    each receipt of a committed batch, so it must be idempotent. May raise anything and is called again;
    CheckpointError and FencedError end the run.
`map(do, instructions)` carries out several instructions, concurrently or in any order, and returns their
    events. If one of them raises, the exception is raised once none is still running.
`sleep(seconds)`, `clock()`: waiting before another try; seconds since 1970.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from tidegate import faults
from tidegate.batch import protocol
from tidegate.batch.garbage import Garbage
from tidegate.batch.outcome import Outcome, Written
from tidegate.batch.protocol import BatchProtocol, Event, Instruction
from tidegate.batch.reconciliation import check_cut
from tidegate.batch.ticket import Ticket
from tidegate.batch.time import Time
from tidegate.batch.watermark import Watermark
from tidegate.errors import (
    BatchError,
    CheckpointError,
    FencedError,
    StateLostError,
    StepError,
    TidegateError,
)
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut, Entry
from tidegate.rescale.route import Route
from tidegate.sinks.sink import Receipt
from tidegate.spark.reasons import reason
from tidegate.state.fleet.nodes import Nodes, StateResult
from tidegate.state.fleet.stateless import Stateless
from tidegate.state.task.assignment import Assignment
from tidegate.state.wire.flights import UNANSWERED

log = logging.getLogger(__name__)


Job: TypeAlias = Callable[[Ticket, Assignment | None], Written]
Publish: TypeAlias = Callable[[int, str, Receipt], None]
Do: TypeAlias = Callable[[Instruction], Event]
Map: TypeAlias = Callable[[Do, Sequence[Instruction]], Iterable[Event]]


def in_turn(do: Do, instructions: Sequence[Instruction]) -> list[Event]:
    """One after the other."""
    return [do(instruction) for instruction in instructions]


def side_by_side(pool: Executor) -> Map:
    """All at once: the first in the calling thread, each other in a thread of the pool."""

    def carry_out(do: Do, instructions: Sequence[Instruction]) -> list[Event]:
        first, *others = instructions
        running = [pool.submit(do, instruction) for instruction in others]
        try:
            event = do(first)
        finally:
            wait(running)
        return [event, *(each.result() for each in running)]

    return carry_out


@dataclass(slots=True)
class Batches:
    """Takes batches through the protocol, one after the other."""

    ledger: Ledger
    nodes: Nodes | None
    """None for a pipeline without state; `stateless` has its route then."""
    watermark: Watermark
    garbage: Garbage
    publish: Publish
    tries: int
    """How often a batch is attempted, and published, before it is given up."""
    retry_wait: float
    limit: Callable[[], int | None] = lambda: None
    """The current limit, for the ledger: a restart begins with it."""
    meaning: Mapping[str, Mapping[str, str]] | None = None
    """What the state of each step stands for, for the ledger."""
    configured: tuple[int, int] | None = None
    """State nodes and parallelism of the configuration, for the ledger: a restart with the same ones keeps
    the route."""
    stateless: Stateless | None = None
    map: Map = in_turn
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time

    @property
    def route(self) -> Route | None:
        """That of the next batch."""
        routed = self.nodes or self.stateless
        return routed.route if routed else None

    def run(
        self, batch_id: int, cut: Mapping[str, Cut], job: Job, *, planned_at: datetime | None = None
    ) -> Outcome | None:
        """Carry out one batch; None if it had been committed before.

        A batch with an empty cut closes everything that is open: Spark makes no batch without rows, so it was
        planned for that. `planned_at`: when Spark planned the batch.

        Raises BatchError when it failed too often, FencedError when another driver has taken over.
        """
        entry = self.ledger.get(batch_id)
        check_cut(batch_id, cut, self.ledger.last, entry)
        if entry is not None:
            log.info("batch %d is already committed; publishing it again", batch_id)
            _Batch(self, batch_id, cut, job, entry).carry_out()
            return None
        self.ledger.check_next(batch_id)
        batch = _Batch(self, batch_id, cut, job, None, planned_at)
        batch.carry_out()
        self.garbage.collect(
            batch.kept.manifest if batch.kept else None, self.nodes.route.version if self.nodes else 0
        )
        return batch.outcome()

    def is_committed(self, batch_id: int) -> bool:
        """Whether the batch is in the ledger: Spark is replaying it."""
        last = self.ledger.last
        return last is not None and batch_id <= last.batch_id

    @property
    def time(self) -> Time:
        """The event time of the next batch. It never goes back, not even after a restart with more grace."""
        closed = self.ledger.last.watermark if self.ledger.last else None
        return Time(closed, _later(closed, self.watermark.micros))

    @property
    def open(self) -> bool:
        """Whether anything may be waiting for the watermark that a closing batch would have. After such a
        batch, only timers that it has set itself are, and those stay."""
        last, end = self.ledger.last, self.watermark.end
        if last is None or end is None or _is_closing(last.cut):
            return False
        return last.watermark is None or last.watermark < end


class _Batch:
    """One batch at work."""

    def __init__(
        self,
        batches: Batches,
        batch_id: int,
        cut: Mapping[str, Cut],
        job: Job,
        entry: Entry | None,
        planned_at: datetime | None = None,
    ) -> None:
        self._of, self._id, self._cut, self._job = batches, batch_id, cut, job
        self._committed = entry
        self._planned_at = None if planned_at is None else round(planned_at.timestamp() * 1000)
        self._time, self._idle = batches.time, batches.watermark.idle_sources
        if _is_closing(cut):
            self._time = Time(self._time.closed, _later(self._time.watermark, batches.watermark.end))
            self._idle = tuple(batches.watermark.graces)
        self._phases: dict[str, float] = {}
        self._tries = 1
        self._written: Written | None = None
        self.kept: StateResult | None = None
        """What the batch left in the nodes, once it is in the ledger; None without state."""
        self._cause: Exception | None = None
        self._failures: list[str] = []
        """Failures of publishing, of which the protocol is not told."""
        self._protocol = BatchProtocol(
            generation=batches.ledger.generation,
            expected=batches.nodes.expected if batches.nodes else {},
            tries=batches.tries,
        )

    def carry_out(self) -> None:
        """Feed the protocol until it has nothing more to say."""
        events: deque[Event] = deque([protocol.Start(self._id, self._committed is not None)])
        while events:
            instructions = self._protocol.handle(events.popleft())
            events.extend(self._of.map(self._do, instructions) if instructions else ())

    def outcome(self) -> Outcome:
        """What the batch did."""
        assert self._written is not None
        return Outcome(
            batch_id=self._id,
            visible_at=self._of.clock(),
            cut=self._cut,
            seen=self._written.seen,
            rows_out=self._written.rows,
            watermark=self._time.watermark,
            phases=self._phases,
            tries=self._tries,
            kept=self.kept,
            idle=self._idle,
            silent={name: since for name, since in self._of.watermark.silent.items() if since > 0},
        )

    def _do(self, instruction: Instruction) -> Event:
        match instruction:
            case protocol.Begin() | protocol.RunJob() | protocol.Prepare():
                return self._attempt(instruction)
            case protocol.Append(ticket):
                with self._timed("ledger"):
                    self._append(ticket)
                faults.reach("driver.appended", self._id)
                return protocol.Appended(ticket)
            case protocol.Commit(ticket, node):
                with self._timed("commit-state"):
                    self._nodes.commit(node, ticket, self._time.watermark)
                return protocol.Committed(ticket, node)
            case protocol.Publish():
                return self._publish()
            case protocol.Heal(ticket):
                return self._heal(ticket)
            case protocol.GiveUp(_, tries, why):
                raise self._gave_up(tries, why) from self._cause
        raise AssertionError(f"unreachable: {instruction}")

    @property
    def _nodes(self) -> Nodes:
        assert self._of.nodes is not None
        return self._of.nodes

    def _attempt(self, instruction: protocol.Begin | protocol.RunJob | protocol.Prepare) -> Event:
        """A failure before the commit point is an event like any other, except for being fenced."""
        try:
            match instruction:
                case protocol.Begin(ticket, node):
                    with self._timed("begin"):
                        faults.reach("driver.begin", self._id)
                        self._nodes.begin(node, ticket, self._time.watermark)
                        faults.reach("driver.begun", self._id)
                    return protocol.Begun(ticket, node)
                case protocol.RunJob(ticket):
                    nodes = self._of.nodes
                    with self._timed("write"):
                        assignment = nodes.assignment(ticket, self._time) if nodes else None
                        self._written = self._job(ticket, assignment)
                        faults.reach("driver.written", self._id)
                    return protocol.JobDone(ticket)
                case protocol.Prepare(ticket, node):
                    with self._timed("prepare"):
                        staged = self._nodes.prepare(node, ticket)
                        faults.reach("driver.prepared", self._id)
                    return protocol.Prepared(ticket, node, staged)
        except FencedError:
            raise
        except Exception as error:
            self._cause = error
            lasting = isinstance(error, StepError | StateLostError)
            return protocol.Failed(instruction.ticket, reason(error).rstrip("."), lasting)

    def _append(self, ticket: Ticket) -> None:
        of, written, nodes = self._of, self._written, self._of.nodes
        assert written is not None
        newest = {name: seen.newest for name, seen in written.seen.items() if seen.newest is not None}
        kept = nodes.kept(self._id, self._time.watermark) if nodes else None
        advanced = of.watermark.advance(
            newest, passed=self._passed(), furthest=kept.furthest if kept else None
        )
        durable = nodes is None or nodes.durable
        of.ledger.append(
            Entry(
                batch_id=self._id,
                generation=of.ledger.generation,
                cut=self._cut,
                event_times=advanced.seen,
                receipts=written.receipts,
                limit=of.limit(),
                watermark=self._time.watermark,
                state=kept.manifest if kept and durable else None,
                meaning=of.meaning or {},
                durable=durable,
                route=of.route,
                configured=of.configured,
                furthest=advanced.furthest,
                planned_at=self._planned_at,
                silent=advanced.silent,
            )
        )
        of.watermark, self.kept = advanced, kept
        if nodes and kept:
            nodes.committed(ticket, kept.manifest)

    def _passed(self) -> float:
        """Seconds from when the batch before was planned to when this one was; 0 if another driver ran that
        one, since nobody listened in between."""
        last, now = self._of.ledger.last, self._planned_at
        if last is None or last.generation != self._of.ledger.generation:
            return 0.0
        if now is None or last.planned_at is None:
            return 0.0
        return max(0.0, (now - last.planned_at) / 1000)

    def _publish(self) -> Event:
        done = self._committed or self._written
        assert done is not None
        faults.reach("driver.committed", self._id)
        with self._timed("publish"):
            for place, receipt in done.receipts.items():
                self._publish_to(place, receipt)
        faults.reach("driver.published", self._id)
        return protocol.Published(self._id)

    def _publish_to(self, place: str, receipt: Receipt) -> None:
        for number in range(1, self._of.tries + 1):
            try:
                self._of.publish(self._id, place, receipt)
            except (FencedError, CheckpointError):
                raise
            except Exception as error:
                why = f"publishing to {place} failed: {reason(error).rstrip('.')}"
                self._failures.append(why)
                log.warning("batch %d: try %d of %d: %s", self._id, number, self._of.tries, why)
                if number == self._of.tries:
                    raise self._gave_up(number, why) from error
                self._of.sleep(self._of.retry_wait)
            else:
                self._tries = max(self._tries, number)
                return

    def _heal(self, ticket: Ticket) -> Event:
        log.warning(
            "batch %d: try %d of %d failed: %s", self._id, ticket.attempt, self._of.tries, self._protocol.why
        )
        self._tries = ticket.attempt + 1
        # If a lost node was the cause, it has been replaced; anything else may need a moment to pass.
        try:
            lost = self._of.nodes.heal() if self._of.nodes else 0
        except (TidegateError, OSError) as error:
            log.warning("batch %d: a lost node could not be replaced: %s", self._id, error)
            lost = 0  # The next attempt fails on it, and comes back here.
        if not lost:
            self._of.sleep(self._pause(ticket))
        return protocol.Healed(ticket)

    def _pause(self, ticket: Ticket) -> float:
        """Tasks may not reach a node that lives, while a link is cut. They notice that soon, so there is time
        for another try at once; after that it takes as long as it may take."""
        nodes = self._of.nodes
        if nodes is None or ticket.attempt == 1 or UNANSWERED not in self._protocol.why:
            return self._of.retry_wait
        return max(self._of.retry_wait, nodes.timeout)

    def _gave_up(self, tries: int, why: str) -> BatchError:
        story = (*map(str, self._protocol.story), *self._failures)
        if isinstance(self._cause, StateLostError):
            return BatchError(f"batch {self._id}: {why}", batch_id=self._id, tries=tries, story=story)
        again = f"the pipeline again to resume with batch {self._id}"
        if isinstance(self._cause, StepError):
            text = f"batch {self._id}: {why}. Correct it and start {again}"
            return BatchError(text, batch_id=self._id, tries=tries)
        return BatchError(
            f"batch {self._id}: {tries} of {tries} tries failed; the last: {why}. Start {again}",
            batch_id=self._id,
            tries=tries,
            story=story,
        )

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._phases[phase] = max(self._phases.get(phase, 0.0), time.perf_counter() - start)


def _is_closing(cut: Mapping[str, Cut]) -> bool:
    """Whether the batch of that cut has no rows."""
    return bool(cut) and all(part.start == part.end for part in cut.values())


def _later(one: int | None, other: int | None) -> int | None:
    """The later of two moments; one that is not known does not count."""
    return max((moment for moment in (one, other) if moment is not None), default=None)
