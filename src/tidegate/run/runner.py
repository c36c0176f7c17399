"""A plan at work: starts Spark, feeds it, watches it, stops it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidegate import faults
from tidegate.batch.admission import Admission
from tidegate.batch.batch import Batches, identity
from tidegate.batch.intake import Intake
from tidegate.batch.outcome import Outcome
from tidegate.batch.watermark import Watermark
from tidegate.cluster import Cluster
from tidegate.config import Config
from tidegate.control.server import ControlServer
from tidegate.errors import FencedError, ListenerError, QueryError, TidegateError
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.plan import Plan
from tidegate.rescale.rescaler import Rescaler, RestartRequestedError
from tidegate.run import checkpoint as checkpoints
from tidegate.run import compute, recovery, signals
from tidegate.run.controls import RunControls
from tidegate.run.progress import BatchProgress, Listener
from tidegate.run.summary import StoppedBy, Summary, Tally
from tidegate.sinks.files import Files
from tidegate.sinks.sink import SinkWriter
from tidegate.spark import session
from tidegate.spark.listener import Report, watching
from tidegate.spark.query import RunningQuery
from tidegate.spark.reasons import reason
from tidegate.state.task import hot_keys
from tidegate.translation.translation import Translation
from tidegate.units import seconds

log = logging.getLogger(__name__)

_SETTLE = 10.0
"""Seconds that Spark gets to commit its own offsets after a batch before the query is stopped."""


def run(
    plan: Plan,
    config: Config,
    *,
    listeners: Sequence[Listener] = (),
    duration: float | None = None,
    until_done: bool = False,
) -> Summary:
    """Run a plan until it is stopped, `duration` seconds have passed or, `until_done`, nothing is left."""
    faults.enter("driver")
    folder = checkpoints.open_folder(config.engine.checkpoint.format(pipeline=plan.name), plan)
    with ExitStack() as stack:
        spark, cluster = stack.enter_context(compute.opened(plan, config))
        runner = Runner(plan, config, folder, spark, cluster, listeners, until_done=until_done)
        stack.callback(runner.close)
        if config.control.enabled:
            stack.enter_context(
                ControlServer(
                    runner.controls, checkpoint=folder, bind=config.control.bind, port=config.control.port
                )
            )
        stack.enter_context(signals.calling(lambda: runner.stop("signal")))
        return runner.run(duration)


class Runner:
    """One run of one plan."""

    def __init__(
        self,
        plan: Plan,
        config: Config,
        folder: Path,
        spark: SparkSession,
        cluster: Cluster,
        listeners: Sequence[Listener],
        *,
        until_done: bool,
    ) -> None:
        self._plan, self._spark = plan, spark
        self._interval = seconds(config.engine.interval)
        self._parallelism = config.engine.parallelism or spark.sparkContext.defaultParallelism
        self._until_done = until_done
        self._tally = Tally()
        self._listeners: list[Listener] = [self._tally, *listeners]
        self._checkpoint = folder / "spark"
        self._scratch = Path(SparkFiles.getRootDirectory())
        """Of the executor that a local Spark is."""
        ledger = Ledger(folder / "ledger")
        admission = _admission(config, self._interval, ledger.last.limit if ledger.last else None)
        self._translation = Translation(
            plan,
            spark,
            parallelism=self._parallelism,
            first_rows=admission.limit if admission else None,
            groups=recovery.key_groups(ledger.last, config),
        )
        writers = {step: step.sink.open(spark, pipeline=plan.name) for step in plan.sinks}
        self._translation.check(writers)
        self._dead_letters = folder / "dead-letters"
        if config.dead_letters.path is not None:
            self._dead_letters = Path(config.dead_letters.path) / plan.name
        dead_letters = {
            step: Files(self._dead_letters / step.name, format="json").open(spark, pipeline=plan.name)
            for step in plan.sources
            if step.source.fallible
        }
        recovery.check(folder, ledger, self._translation, config)
        # Nothing can be wrong with the pipeline any more: only now is another driver shut out.
        ledger.take_over()
        last = ledger.last
        named = {identity(step): writer for step, writer in writers.items()}
        named |= {identity(step): writer for step, writer in dead_letters.items()}
        for name, writer in named.items():
            writer.recover(
                last.batch_id if last else -1,
                last.receipts.get(name) if last else None,
                generation=ledger.generation,
            )
        self._intake = Intake(self._translation.sources, admission, last.cut if last else {})
        self._nodes, garbage = recovery.start(
            folder, ledger, self._translation, config, pipeline=plan.name, parallelism=self._parallelism
        )
        self._rescaler = self._opened_rescaler(config, cluster)
        self.controls = RunControls(
            plan.name,
            checkpoint=folder,
            log=config.state.log,
            interval=self._interval,
            parallelism=self._parallelism,
            nodes=self._nodes,
            rescaler=self._rescaler,
            steps=tuple(step.name for step in self._translation.operators),
            stop=lambda: self.stop("signal"),
        )
        self._listeners.append(self.controls)
        self._batches = Batches(
            spark=spark,
            translation=self._translation,
            ledger=ledger,
            writers=writers,
            dead_letters=dead_letters,
            nodes=self._nodes,
            garbage=garbage,
            deadline=seconds(config.engine.deadline) if config.engine.deadline else None,
            watermark=Watermark(
                {s.name: seconds(s.source.grace) for s in plan.sources if s.source.event_time is not None},
                last.event_times if last else {},
            ),
            tries=config.engine.tries,
            retry_wait=seconds(config.engine.retry_wait),
            limit=lambda: self._intake.limit,
            configured=(config.state.nodes, self._parallelism),
        )
        self._query: RunningQuery | None = None
        self._began: float | None = None
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._stopped_by: StoppedBy = "signal"
        self._failure: BaseException | None = None
        self._busy = threading.Lock()
        self._outcomes: dict[int, Outcome] = {}
        self._lost: list[int] = []
        """For each time that Spark ended the query: the last batch that was committed before."""

    def _opened_rescaler(self, config: Config, cluster: Cluster) -> Rescaler | None:
        if self._nodes is None or not config.control.enabled:
            return None  # There is nothing to rescale, or nobody who could ask for it.
        return Rescaler(
            self._nodes,
            config.state,
            fit=lambda slots: cluster.fit(-(-slots // config.cluster.cores)),
            interval=self._interval,
            parallelism=self._parallelism,
            steps=[step.name for step in self._translation.operators],
        )

    def run(self, duration: float | None) -> Summary:
        """Start the query and wait for its end."""
        with watching(self._spark, self):
            query = self._started_query()
            self._wait(query, duration)
            while self._is_lost(query):
                query = self._started_query()
                self._wait(query, duration)
            self._finish(query)
        return self._tally.summary(
            self._plan.name,
            seconds=time.monotonic() - self._began if self._began is not None else 0.0,
            outputs={step.name: step.sink.describe() for step in self._plan.sinks},
            stopped_by=self._stopped_by,
            dead_letters_path=str(self._dead_letters),
        )

    def _started_query(self) -> StreamingQuery:
        self._started.clear()
        with session.changed(self._spark, self._translation.settings):
            query = (
                self._translation.stream()
                .writeStream.queryName(self._plan.name)
                .foreachBatch(self._batch)
                .option("checkpointLocation", str(self._checkpoint))
                .trigger(processingTime=f"{round(self._interval * 1000)} milliseconds")
                .start()
            )
        self._query = RunningQuery(self._spark, query, self._checkpoint)
        self._started.set()
        return query

    def _is_lost(self, query: StreamingQuery) -> bool:
        """Whether Spark ended the query outside of a batch, as it does when the process of a Python source
        dies, and it may be started again: as often in a row, without a batch between, as a batch is tried."""
        error = query.exception()
        if error is None or self._failure is not None or self._stopping.is_set():
            return False
        if self._rescaler is not None and self._rescaler.restarted():
            self._await_reports()
            return True
        self._check_replaced(error)
        last = self._batches.ledger.last
        committed = last.batch_id if last else -1
        self._lost.append(committed)
        failures, tries = self._lost.count(committed), self._batches.tries
        log.warning("Spark ended the query, %d of %d times in a row: %s", failures, tries, reason(error))
        if failures >= tries:
            return False
        time.sleep(self._batches.retry_wait)
        # What Spark has still to tell of the batches of this query is told before the next one begins.
        self._await_reports()
        return True

    def stop(self, why: StoppedBy) -> None:
        """Finish the batch that is running, then end. May be called from a signal handler."""
        if not self._stopping.is_set():
            self._stopped_by = why
            self._stopping.set()

    def close(self) -> None:
        """Let go of what the sinks hold, and of the state nodes."""
        with ExitStack() as stack:  # One that cannot be closed does not keep the others open.
            if self._nodes is not None:
                stack.callback(self._nodes.close)
                stack.callback(hot_keys.forget, self._scratch, self._nodes.token)
            for writer in self._writers():
                stack.callback(writer.close)

    def _writers(self) -> list[SinkWriter]:
        return [*self._batches.writers.values(), *self._batches.dead_letters.values()]

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        """What Spark calls with each micro-batch."""
        self._started.wait()
        assert self._query is not None
        self._begin()
        with self._busy:
            if self._stopping.is_set():
                # Its cut is in Spark's log: the next run takes it up again.
                raise _StopRequestedError
            try:
                if self._rescaler is not None and not self._batches.is_committed(batch_id):
                    self._rescaler.boundary(batch_id)
                started = time.perf_counter()
                outcome = self._batches.run(rows, batch_id, self._query)
            except RestartRequestedError:
                raise
            except Exception as error:
                self._failure = error
                raise
            if outcome is not None:
                self._outcomes[batch_id] = outcome
                if self._rescaler is not None:
                    self._rescaler.committed(outcome, time.perf_counter() - started)

    def _begin(self) -> None:
        """The clock of a run starts with its first trigger: what comes before is Spark's start."""
        if self._began is None:
            self._began = time.monotonic()

    def _wait(self, query: StreamingQuery, duration: float | None) -> None:
        while query.isActive and not self._stopping.wait(0.05):
            if duration is None or self._began is None:
                continue
            if time.monotonic() >= self._began + duration:
                self.stop("duration")

    def _finish(self, query: StreamingQuery) -> None:
        if query.isActive:
            with self._busy:
                pass
            # Spark commits its own offsets after the batch and tells the watcher; then it is safe to stop.
            deadline = time.monotonic() + _SETTLE
            while self._outcomes and query.isActive and time.monotonic() < deadline:
                time.sleep(0.01)
        query.stop()
        self._await_reports()
        failure, error = self._failure, query.exception()
        if failure is None and error is not None and not self._stopping.is_set():
            failure = QueryError(f"Spark ended the query {self._plan.name!r}: {reason(error)}")
            failure.__cause__ = error
        if failure is not None:
            self._check_replaced(failure)
            raise failure

    def _await_reports(self) -> None:
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()

    def _check_replaced(self, failure: BaseException) -> None:
        """Raise FencedError when another driver has taken over: then Spark's log, an output or a run of the
        state has changed under this one, and that is all that the failure means."""
        mine, newest = self._batches.ledger.generation, Ledger(self._checkpoint.parent / "ledger").generation
        if newest > mine and not isinstance(failure, FencedError):
            raise FencedError(
                f"another driver has taken over this checkpoint (generation {newest}) from this one "
                f"(generation {mine}); only one can run at a time"
            ) from failure

    def runs(self, run_id: str) -> bool:
        """Whether that is the query of this run."""
        return self._query is not None and self._query.run_id == run_id

    def progressed(self, report: Report) -> None:
        """Spark has committed a batch: tell the listeners, and set the limit of the next."""
        outcome = self._outcomes.pop(report.batch_id, None)
        if outcome is None or self._query is None:
            return
        batch_seconds = report.seconds["triggerExecution"]
        rows_in = sum(outcome.rows_in.values())
        self._intake.moved(report.positions)
        self._intake.adapt(self._query, outcome.rows_in, outcome.cut, batch_seconds)
        progress = BatchProgress(
            pipeline=self._plan.name,
            batch_id=outcome.batch_id,
            finished_at=datetime.fromtimestamp(outcome.visible_at, UTC),
            cut=outcome.cut,
            rows_in=rows_in,
            rows_out=sum(outcome.rows_out.values()),
            dead_letters=outcome.dead_letters,
            input_rate=self._intake.arrived_per_second(rows_in, report.begun.timestamp()),
            rows_per_second=rows_in / batch_seconds if batch_seconds > 0 else 0.0,
            batch_seconds=batch_seconds,
            interval_seconds=self._interval,
            phases={
                "offsets": report.seconds.get("latestOffset", 0.0),
                "planning": report.seconds.get("queryPlanning", 0.0),
                "wal": report.seconds.get("walCommit", 0.0),
                **outcome.phases,
                "commit": report.seconds.get("commitOffsets", 0.0),
            },
            lag=self._intake.lag,
            limit=self._intake.limit,
            latency_p50=outcome.latency_p50,
            latency_p99=outcome.latency_p99,
            watermark=_moment(outcome.watermark),
            parallelism=self._nodes.route.parallelism if self._nodes else self._parallelism,
            tries=outcome.tries,
            sinks=outcome.rows_out,
            late=outcome.late,
            state_rows=outcome.state_rows,
            state_bytes=outcome.state_bytes,
            state_wire=outcome.state_wire,
            state_nodes=len(self._nodes.route.nodes) if self._nodes else 0,
            state_local=outcome.arrived.local,
            state_remote=outcome.arrived.remote,
            rescale=self._rescaler.phase if self._rescaler else None,
        )
        log.debug("batch %d: %s", outcome.batch_id, progress)
        for listener in list(self._listeners):
            self._tell(listener, progress)

    def _tell(self, listener: Listener, progress: BatchProgress) -> None:
        try:
            listener(progress)
        except Exception as error:
            self._listeners.remove(listener)
            name = getattr(listener, "__qualname__", type(listener).__name__)
            self.fail(
                ListenerError(
                    f"the listener {name} failed at batch {progress.batch_id}, which is committed: "
                    f"{type(error).__name__}: {error}"
                ),
                error,
            )

    def fail(self, failure: TidegateError, cause: Exception) -> None:
        """End the run with this error once its batch is through."""
        failure.__cause__ = cause
        self._failure = self._failure or failure
        self.stop("signal")

    def idle(self) -> None:
        """A trigger found nothing to do."""
        self._begin()
        if self._until_done and not self._outcomes and self._intake.done:
            self.stop("done")


class _StopRequestedError(Exception):
    """Ends the query before a batch that came after the request to stop."""


def _admission(config: Config, interval: float, limit: int | None) -> Admission | None:
    settings = config.admission
    if not settings.enabled:
        return None
    return Admission(
        target=interval * settings.target,
        least=settings.min_rows,
        most=settings.max_rows,
        limit=min(max(limit or settings.initial_rows, settings.min_rows), settings.max_rows),
    )


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)
