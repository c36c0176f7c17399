"""What a run works with, opened one after the other. When a check fails, what is open is closed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from tidegate.batch.admission import Admission
from tidegate.batch.intake import Intake
from tidegate.batch.job import SparkJobs
from tidegate.batch.outputs import Outputs
from tidegate.batch.reconciliation import reconcile
from tidegate.batch.shell import Batches, side_by_side
from tidegate.batch.watermark import Watermark
from tidegate.cluster.provider import Cluster
from tidegate.config import Config
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.pipeline.plan import Plan
from tidegate.rescale.rescaler import Rescaler
from tidegate.run import recovery
from tidegate.run.lock import DriverLock
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.task import hot_keys
from tidegate.translation.translation import Translation
from tidegate.units import seconds


@dataclass(frozen=True, slots=True)
class Opened:
    """A plan that can run: everything is checked, recovered and started but the query."""

    plan: Plan
    config: Config
    folder: Path
    """The checkpoint."""
    lock: DriverLock
    dead_letters: Path
    spark: SparkSession
    interval: float
    parallelism: int
    """That of the configuration, or of the cluster; the route may have another one by now."""
    translation: Translation
    intake: Intake
    jobs: SparkJobs
    batches: Batches
    rescaler: Rescaler | None
    """None without state, or if nobody can ask for a rescale."""

    @property
    def nodes(self) -> Nodes | None:
        return self.batches.nodes

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
    folder: Path,
    lock: DriverLock,
    spark: SparkSession,
    cluster: Cluster,
    *,
    steered: bool,
) -> Iterator[Opened]:
    """Open a plan on its checkpoint, and close it at the end of the block.

    Up to `claim` nothing disturbs a driver that runs on the same checkpoint. `steered`: somebody may ask for
    a rescale.
    """
    interval = seconds(config.engine.interval)
    parallelism = config.engine.parallelism or spark.sparkContext.defaultParallelism
    ledger = Ledger(folder / "ledger")
    admission = _admission(config, interval, ledger.last.limit if ledger.last else None)
    translation = Translation(
        plan,
        spark,
        parallelism=parallelism,
        first_rows=admission.limit if admission else None,
        groups=recovery.key_groups(ledger.last, config),
        ahead=config.engine.ahead,
    )
    dead_letters = folder / "dead-letters"
    if config.dead_letters.path is not None:
        dead_letters = Path(config.dead_letters.path) / plan.name
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="batch"))
        outputs = stack.enter_context(Outputs.opened(plan, spark, dead_letters))
        translation.check(outputs.writers)
        recovery.check(folder, ledger, translation, config)
        # Nothing can be wrong with the pipeline any more: only now is another driver shut out.
        # The lock first: what is started again in the place of that one must find it taken.
        lock.claim()
        ledger.take_over()
        last = ledger.last
        reconcile(CheckpointFiles(folder / "spark"), last, [step.name for step in translation.sources])
        outputs.recover(ledger)
        intake = Intake(translation.sources, admission, last.cut if last else {})
        nodes, garbage = recovery.start(
            folder, ledger, translation, config, pipeline=plan.name, parallelism=parallelism
        )
        if nodes is not None:
            stack.callback(nodes.close)
            # Of the executor that a local Spark is.
            stack.callback(hot_keys.forget, Path(SparkFiles.getRootDirectory()), nodes.token)
        batches = Batches(
            ledger=ledger,
            nodes=nodes,
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
        yield Opened(
            plan=plan,
            config=config,
            folder=folder,
            lock=lock,
            dead_letters=dead_letters,
            spark=spark,
            interval=interval,
            parallelism=parallelism,
            translation=translation,
            intake=intake,
            jobs=SparkJobs(spark, translation, outputs, deadline, pool),
            batches=batches,
            rescaler=Rescaler(
                nodes,
                config.state,
                fit=lambda slots: cluster.fit(-(-slots // config.cluster.cores)),
                interval=interval,
                parallelism=parallelism,
                steps=[step.name for step in translation.operators],
            )
            if nodes and steered
            else None,
        )


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
    return Admission(
        target=interval * settings.target,
        least=settings.min_rows,
        most=settings.max_rows,
        longest=seconds(settings.longest),
        limit=min(max(limit or settings.initial_rows, settings.min_rows), settings.max_rows),
    )
