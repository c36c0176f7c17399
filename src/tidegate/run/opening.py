"""What a run works with, opened one after the other. When a check fails, what is open is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from tidegate.batch.admission import Admission
from tidegate.batch.intake import Intake
from tidegate.batch.job import SparkJobs, SparkRecord
from tidegate.batch.outputs import Outputs
from tidegate.batch.reconciliation import ends_of, reconcile
from tidegate.batch.shell import Batches, side_by_side
from tidegate.batch.watermark import Watermark
from tidegate.cluster.hosts import HostNames
from tidegate.cluster.provider import Cluster
from tidegate.config import Config
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.pipeline.plan import Plan
from tidegate.rescale import records
from tidegate.rescale.history import History
from tidegate.rescale.layout import preferred_hosts
from tidegate.rescale.rescaler import Rescaler
from tidegate.rescale.route import Route
from tidegate.run import recovery
from tidegate.run.checkpoint import Checkpoint
from tidegate.run.lock import DriverLock
from tidegate.security.security import Security
from tidegate.spark.executors import executor_hosts
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.task import hot_keys
from tidegate.state.task.assignment import Assignment
from tidegate.storage.place import join
from tidegate.translation.translation import Translation
from tidegate.units import seconds


@dataclass(frozen=True, slots=True)
class Opened:
    """A plan that can run: everything is checked, recovered and started but the query."""

    plan: Plan
    config: Config
    checkpoint: Checkpoint
    lock: DriverLock
    dead_letters: str
    """A folder, or a place in an object store."""
    spark: SparkSession
    interval: float
    translation: Translation
    intake: Intake
    jobs: SparkJobs
    batches: Batches
    rescaler: Rescaler

    @property
    def nodes(self) -> Nodes | None:
        """None without state."""
        return self.batches.nodes

    @property
    def route(self) -> Route:
        """That of the next batch."""
        assert self.batches.route is not None
        return self.batches.route

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that keep state."""
        return tuple(step.name for step in self.translation.operators)


_THREADS = 1024
"""At most, one per call to a node; they start as they are needed."""


@contextmanager
def opened(
    plan: Plan,
    config: Config,
    checkpoint: Checkpoint,
    lock: DriverLock,
    spark: SparkSession,
    cluster: Cluster,
    security: Security,
) -> Iterator[Opened]:
    """Open a plan on its checkpoint, and close it at the end of the block.

    Up to `claim` nothing disturbs a driver that runs on the same checkpoint.
    """
    interval = seconds(config.engine.interval)
    parallelism = config.engine.parallelism or spark.sparkContext.defaultParallelism
    ledger = Ledger(checkpoint.ledger)
    admission = _admission(config, interval, ledger.last.limit if ledger.last else None)
    translation = Translation(
        plan,
        spark,
        parallelism=recovery.stateless(ledger.last, config, parallelism).route.parallelism,
        first_rows=admission.limit if admission else None,
        groups=recovery.key_groups(ledger.last, config),
        ahead=config.engine.ahead,
    )
    dead_letters = join(checkpoint.storage.url, "dead-letters")
    if config.dead_letters.path is not None:
        dead_letters = join(config.dead_letters.path, plan.name)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="batch"))
        outputs = stack.enter_context(Outputs.opened(plan, spark, dead_letters))
        translation.check(outputs.writers)
        recovery.check(checkpoint, ledger, translation, config)
        # Nothing can be wrong with the pipeline any more: only now is another driver shut out.
        # The lock first: what is started again in the place of that one must find it taken.
        lock.claim()
        ledger.take_over()
        last = ledger.last
        names = [step.name for step in translation.sources]
        lock.begin(ledger)
        record = _spark_record(checkpoint, lock, ledger, names, plans=not outputs.staged)
        reconcile(checkpoint.spark, last, names, check_newest=ledger.check_newest)
        outputs.recover(ledger)
        intake = Intake(translation.sources, admission, last.cut if last else {})
        nodes, garbage = recovery.start(
            checkpoint,
            ledger,
            translation,
            config,
            security,
            spark=spark,
            staying=cluster.staying,
            pipeline=plan.name,
            parallelism=parallelism,
        )
        if nodes is not None:
            stack.callback(nodes.close)
            # Of the executor that a local Spark is.
            stack.callback(hot_keys.forget, Path(SparkFiles.getRootDirectory()), nodes.security.token)
        stateless = recovery.stateless(last, config, parallelism)
        asked = stateless.route.parallelism  # By the last rescale; of a pipeline with state, too.
        batches = Batches(
            ledger=ledger,
            nodes=nodes,
            stateless=None if nodes else stateless,
            watermark=_watermark(plan, config, last),
            garbage=garbage,
            publish=outputs.publish,
            tries=config.engine.tries,
            retry_wait=seconds(config.engine.retry_wait),
            limit=lambda: intake.limit,
            meaning=translation.meaning,
            configured=(config.state.nodes, parallelism),
            map=side_by_side(pool),
        )
        deadline = seconds(config.engine.deadline) if config.engine.deadline else None
        recording = stack.enter_context(records.Records(checkpoint.rescales))
        rescaler = Rescaler(
            nodes or stateless,
            config.state,
            fit=lambda slots: cluster.fit(-(-slots // config.cluster.cores)),
            retain=lambda slots: cluster.retain(-(-slots // config.cluster.cores)),
            interval=interval,
            parallelism=asked,
            steps=[step.name for step in translation.operators],
            history=History(records.load(checkpoint.rescales), recording.keep),
        )
        if asked > parallelism:
            rescaler.follow(asked)  # The executors that the last rescale brought are not there any more.
        yield Opened(
            plan=plan,
            config=config,
            checkpoint=checkpoint,
            lock=lock,
            dead_letters=dead_letters,
            spark=spark,
            interval=interval,
            translation=translation,
            intake=intake,
            jobs=SparkJobs(spark, translation, outputs, record, deadline, pool, _places(spark)),
            batches=batches,
            rescaler=rescaler,
        )


def _spark_record(
    checkpoint: Checkpoint, lock: DriverLock, ledger: Ledger, sources: Sequence[str], *, plans: bool
) -> SparkRecord:
    """Where Spark's own record outlives this machine, or a crash of it; made anew if that is a store."""
    if checkpoint.is_local:
        return checkpoint.spark
    before, last = lock.predecessor, ledger.last
    copy = checkpoint.spark_copy(ledger.generation, plans=plans)
    finished = before is not None and last is not None and before.finished >= last.batch_id
    copy.restore(last.batch_id if last else -1, *ends_of(last, sources), finished=finished)
    return copy


def _places(spark: SparkSession) -> Callable[[Assignment], tuple[str, ...]]:
    """Where the tasks of a batch should run: beside their state."""
    names = HostNames(partial(executor_hosts, spark))
    return lambda assignment: names.of(preferred_hosts(assignment.route, assignment.hosts))


def _watermark(plan: Plan, config: Config, last: Entry | None) -> Watermark:
    return Watermark(
        {s.name: seconds(s.source.grace) for s in plan.sources if s.source.event_time is not None},
        last.event_times if last else {},
        silent=last.silent if last else {},
        furthest=last.furthest if last else None,
        idle=seconds(config.engine.idle) if config.engine.idle else None,
        closing=plan.closing_watermark,
    )


def _admission(config: Config, interval: float, limit: int | None) -> Admission | None:
    settings = config.admission
    if not settings.enabled:
        return None
    admission = Admission(
        target=interval * settings.target,
        least=settings.min_rows,
        most=settings.max_rows,
        longest=seconds(settings.longest),
        limit=min(max(settings.initial_rows, settings.min_rows), settings.max_rows),
    )
    return admission if limit is None else admission.resumed(limit)
