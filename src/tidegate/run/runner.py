"""A plan at work: starts Spark, feeds it, watches it, stops it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate import faults
from tidegate.batch.cut import planned
from tidegate.batch.outcome import Outcome
from tidegate.config import Config
from tidegate.control.server import ControlServer
from tidegate.errors import FencedError, QueryError, TidegateError
from tidegate.pipeline.plan import Plan
from tidegate.rescale.rescaler import RestartRequestedError
from tidegate.run import checkpoint as checkpoints
from tidegate.run import compute, opening, preflight, protection, signals
from tidegate.run.controls import RunControls
from tidegate.run.lock import locked
from tidegate.run.opening import Opened
from tidegate.run.progress import SILENCE, Listener, SteeringListener
from tidegate.run.reporting import Reporting
from tidegate.run.summary import StoppedBy, Summary, Tally
from tidegate.spark import session
from tidegate.spark.listener import Report, drain_listener_bus, watching
from tidegate.spark.query import FILE_PARTITIONS, RunningQuery
from tidegate.spark.reasons import reason
from tidegate.units import seconds

log = logging.getLogger(__name__)

_SETTLE = 10.0
"""Seconds that Spark gets to commit its own offsets after a batch before the query is stopped."""

_POLL = 0.25
"""Seconds between two checks whether Spark has ended the query: each one delays the running batch."""


def run(
    plan: Plan,
    config: Config,
    *,
    listeners: Sequence[Listener] = (),
    duration: float | None = None,
    until_done: bool = False,
    take_over: bool = False,
) -> Summary:
    """Run a plan until it is stopped, `duration` seconds have passed or, `until_done`, nothing is left.

    Raises InUseError when a driver runs on the checkpoint; with `take_over` that one ends instead.
    """
    faults.enter("driver")
    preflight.check_places(plan)
    checkpoint = checkpoints.make(config.engine.checkpoint.format(pipeline=plan.name))
    with ExitStack() as stack:
        lock = stack.enter_context(locked(checkpoint, take_over=take_over))
        checkpoints.check_owner(checkpoint, plan)
        preflight.check_state(plan, checkpoint)
        security = protection.secured(config, plan.name)
        computing = stack.enter_context(compute.opened(plan, config))
        opened = stack.enter_context(
            opening.opened(plan, config, checkpoint, lock, computing.spark, computing.cluster, security)
        )
        runner = Runner(opened, listeners, until_done=until_done)
        stack.callback(runner.controls.end)
        if config.control.enabled:
            server = ControlServer(
                runner.controls,
                checkpoint=checkpoint.folder,
                bind=config.control.bind,
                port=config.control.port,
                scale_by_get=config.control.scale_by_get,
                security=protection.of_control(config, security),
            )
            stack.enter_context(server)
            lock.answers_at(server.url)
        stack.enter_context(signals.calling(lambda: runner.stop("signal")))
        computing.wait_until_warm()
        return runner.run(duration)


class Runner:
    """One run of one plan: the loop around Spark's query. It owns nothing that has to be closed."""

    def __init__(self, opened: Opened, listeners: Sequence[Listener], *, until_done: bool) -> None:
        self._plan, self._spark = opened.plan, opened.spark
        self._opened = opened
        self._intake, self._batches, self._rescaler = opened.intake, opened.batches, opened.rescaler
        self._until_done = until_done
        self._checkpoint = opened.checkpoint.spark.folder
        self._tally = Tally()
        self.controls = RunControls(opened, stop=lambda: self.stop("signal"))
        self._reporting = Reporting(opened, [self._tally, self.controls, *listeners], fail=self.fail)
        self._query: RunningQuery | None = None
        self._began: float | None = None
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._stopped_by: StoppedBy = "signal"
        self._failure: BaseException | None = None
        self._busy = threading.Lock()
        self._outcomes: dict[int, Outcome] = {}
        self._pause = threading.Event()
        """Set while the query is to end so that a closing batch can be planned."""
        self._at_end = False
        """Whether that batch is the last one of the run."""
        self._final: int | None = None
        """Its number, once it is planned. The run ends with it, even if a source has gone on meanwhile."""
        self._heard = time.monotonic()
        """When a batch last had rows, or the run began."""
        self._silence_told = False
        self._free_since = time.time()
        """When the latest batch was over, or the run began."""
        self._adapted = -1
        """The last batch that the limit was set after."""
        self._lost: list[int] = []
        """For each time that Spark ended the query: the last batch that was committed before."""
        for listener in listeners:
            if isinstance(listener, SteeringListener):
                listener.attach(self.controls)

    def run(self, duration: float | None) -> Summary:
        """Start the query and wait for its end."""
        parallelism = str(self._opened.route.parallelism)
        with (
            watching(self._spark, self),
            session.changed(self._spark, {FILE_PARTITIONS: parallelism}),
            ExitStack() as stack,
        ):
            query = self._started_query(stack)
            self._wait(query, duration)
            while self._is_closing(query) or self._is_lost(query):
                query = self._started_query(stack)
                self._wait(query, duration)
            self._finish(query)
        return self._tally.summary(
            self._plan.name,
            seconds=time.monotonic() - self._began if self._began is not None else 0.0,
            outputs={step.name: step.sink.describe() for step in self._plan.sinks},
            stopped_by=self._stopped_by,
            dead_letters_path=self._opened.dead_letters,
        )

    def _started_query(self, stack: ExitStack) -> StreamingQuery:
        """A query that does not outlive the stack: its batches need what is closed after that."""
        self._started.clear()
        self._free_since = time.time()
        with session.changed(self._spark, self._opened.translation.settings):
            query = (
                self._opened.translation.stream()
                .writeStream.queryName(self._plan.name)
                .foreachBatch(self._batch)
                .option("checkpointLocation", str(self._checkpoint))
                .trigger(processingTime=f"{round(self._opened.interval * 1000)} milliseconds")
                .start()
            )
        stack.callback(self._abandon, query)
        self._query = RunningQuery(self._spark, query, self._checkpoint)
        self._started.set()
        return query

    def _abandon(self, query: StreamingQuery) -> None:
        self._stopping.set()
        with suppress(Exception):  # Spark may be gone; whatever led here is told.
            query.stop()

    def _is_closing(self, query: StreamingQuery) -> bool:
        """Whether the query has paused for a batch that closes all that is open, and is to be started again.

        Spark makes no batch without rows. But one that is planned and has not run it takes up when it starts.
        """
        if not self._pause.is_set() or self._stopping.is_set():
            return False
        self._settle(query)
        self._pause.clear()
        last = self._batches.ledger.last
        if self._failure is not None or last is None:
            return False
        assert self._query is not None
        # If Spark has planned a batch meanwhile, rows have come: they come first.
        if self._query.checkpoint.plan_empty(last.batch_id + 1) and self._at_end:
            self._final = last.batch_id + 1
        return True

    def _is_lost(self, query: StreamingQuery) -> bool:
        """Whether Spark ended the query outside of a batch, as it does when the process of a Python source
        dies, and it may be started again: as often in a row, without a batch between, as a batch is tried."""
        error = query.exception()
        if error is None or self._failure is not None or self._stopping.is_set():
            return False
        if self._rescaler.restarted():
            drain_listener_bus(self._spark)
            return True
        if replaced := self._replaced():
            raise replaced from error
        last = self._batches.ledger.last
        committed = last.batch_id if last else -1
        self._lost.append(committed)
        failures, tries = self._lost.count(committed), self._batches.tries
        log.warning("Spark ended the query (%d of %d tries): %s", failures, tries, reason(error))
        if failures >= tries:
            return False
        time.sleep(self._batches.retry_wait)
        # What Spark has still to tell of the batches of this query is told before the next one begins.
        drain_listener_bus(self._spark)
        return True

    def stop(self, why: StoppedBy) -> None:
        """Finish the batch that is running, then end. May be called from a signal handler."""
        if not self._stopping.is_set():
            self._stopped_by = why
            self._stopping.set()
            self.controls.end()

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        """What Spark calls with each micro-batch."""
        self._started.wait()
        assert self._query is not None
        self._begin()
        with self._busy:
            if self._stopping.is_set() or self._pause.is_set():
                # Its cut is in Spark's log: the next run takes it up again.
                raise _StopRequestedError
            try:
                if not self._batches.is_committed(batch_id):
                    self._rescaler.boundary(batch_id)
                parallelism = self._opened.route.parallelism
                self._intake.split(self._query, parallelism)
                started = time.perf_counter()
                cut = planned(self._query.checkpoint, self._opened.translation.sources, batch_id)
                job = partial(self._opened.jobs.run, rows, cut, self._query, parallelism)
                planned_at = self._query.checkpoint.planned_at(batch_id)
                outcome = self._batches.run(batch_id, cut, job, planned_at=planned_at)
            except RestartRequestedError:
                raise
            except Exception as error:
                self._failure = error
                raise
            self._opened.lock.finished(batch_id)
            if outcome is not None:
                if self._intake.fills(outcome.rows_in):
                    # Rows may wait: then Spark plans the next batch before it has told of this one.
                    self._adapt(outcome, self._seconds_since(planned_at))
                self._outcomes[batch_id] = outcome
                self._rescaler.committed(outcome, time.perf_counter() - started)
            self._free_since = time.time()

    def _seconds_since(self, planned_at: datetime | None) -> float:
        """How long a batch has taken up to now. It may have been planned long ago, by another run."""
        return time.time() - max(self._free_since, planned_at.timestamp() if planned_at else 0.0)

    def _adapt(self, outcome: Outcome, seconds: float) -> None:
        """Set the limit of the next batch, once for each."""
        assert self._query is not None
        if outcome.batch_id > self._adapted:
            self._adapted = outcome.batch_id
            self._intake.adapt(self._query, outcome.rows_in, outcome.cut, seconds)

    def _begin(self) -> None:
        """The clock of a run starts with its first trigger: what comes before is Spark's start."""
        if self._began is None:
            self._began = time.monotonic()

    def _wait(self, query: StreamingQuery, duration: float | None) -> None:
        looked = -_POLL
        while not self._stopping.is_set() and not self._pause.is_set():
            now = time.monotonic()
            if now - looked >= _POLL:
                if not query.isActive:
                    return
                if not self._opened.lock.is_held() and (replaced := self._replaced()):
                    self.fail(replaced)  # Without rows, nothing else would tell.
                looked = now
            if duration is not None and self._began is not None and now >= self._began + duration:
                self.stop("duration")
            self._stopping.wait(0.05)

    def _settle(self, query: StreamingQuery) -> None:
        """End the query between two batches."""
        if query.isActive:
            with self._busy:
                pass
            # Spark commits its own offsets after the batch and tells the watcher; then it is safe to stop.
            deadline = time.monotonic() + _SETTLE
            while self._outcomes and query.isActive and time.monotonic() < deadline:
                time.sleep(0.01)
        query.stop()
        drain_listener_bus(self._spark)

    def _finish(self, query: StreamingQuery) -> None:
        self._settle(query)
        failure, error = self._failure, query.exception()
        if failure is None and error is not None and not self._stopping.is_set():
            failure = QueryError(f"Spark ended the query {self._plan.name!r}: {reason(error)}")
            failure.__cause__ = error
        if failure is not None:
            if not isinstance(failure, FencedError) and (replaced := self._replaced()):
                raise replaced from failure
            raise failure

    def _replaced(self) -> FencedError | None:
        """What to end with when another driver has taken over: then Spark's log, an output or a run of the
        state has changed under this one, and that is all that any failure means."""
        try:
            self._batches.ledger.check_newest()
        except FencedError as error:
            return error
        return None

    def runs(self, run_id: str) -> bool:
        """Whether that is the query of this run."""
        return self._query is not None and self._query.run_id == run_id

    def progressed(self, report: Report) -> None:
        """Spark has committed a batch: set the limit of the next one, and tell the listeners."""
        outcome = self._outcomes.pop(report.batch_id, None)
        if outcome is None or self._query is None:
            return
        if sum(outcome.rows_in.values()):
            self._heard = time.monotonic()
        self._intake.moved(report.positions)
        self._adapt(outcome, report.seconds["triggerExecution"])
        self._reporting.tell(outcome, report, self._query.waiting())
        if outcome.batch_id == self._final:
            self.stop("done")

    def fail(self, failure: TidegateError, cause: Exception | None = None) -> None:
        """End the run with this error once its batch is through."""
        failure.__cause__ = cause
        self._failure = self._failure or failure
        self.stop("signal")

    def idle(self) -> None:
        """A trigger found nothing to do."""
        self._begin()
        if self._outcomes or self._pause.is_set():
            return
        done = self._until_done and self._intake.done
        engine, silent = self._opened.config.engine, time.monotonic() - self._heard
        silent_for_long = engine.idle is not None and silent >= seconds(engine.idle)
        self._at_end = done and engine.close_at_end
        if self._batches.open and (silent_for_long or self._at_end):
            self._pause.set()
        elif done:
            self.stop("done")
        elif silent >= SILENCE and engine.idle is None:
            self._warn_of_silence()

    def _warn_of_silence(self) -> None:
        """Say once that windows wait for rows. There is no batch whose progress could tell."""
        if not self._silence_told and self._batches.open:
            self._silence_told = True
            log.warning(
                "no rows for %g s from %s: what is open, such as windows, stays open until rows come. "
                "`engine.idle` sets how long to wait for them",
                SILENCE,
                ", ".join(self._batches.watermark.graces),
            )


class _StopRequestedError(Exception):
    """Ends the query before a batch that came after the request to stop."""
