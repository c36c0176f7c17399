"""One side of a comparison: so many batches of a pipeline, or of a query of Spark's own."""

from __future__ import annotations

import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidegate as tg
from benchmarks.comparison import Sample, cpu_seconds
from benchmarks.ticks import Ticks
from tidegate import config
from tidegate.spark import session

Declare = Callable[[tg.Pipeline], tg.Stream]
CORES = 2
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"


def ours(
    declare: Declare, *, batches: int, warm: int = 2, overrides: Mapping[str, Any] | None = None
) -> Sample:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        before = cpu_seconds()
        told = run(declare, Path(folder) / "c", batches=batches, overrides=overrides or {})
        used = cpu_seconds() - before
    ends = [batch.finished_at.timestamp() for batch in told]
    rows = sum(batch.rows_in for batch in told[warm:])
    total = sum(batch.rows_in for batch in told)
    times = sorted(batch.batch_seconds for batch in told[warm:])
    return Sample(
        rows / (ends[-1] - ends[warm - 1]),
        statistics.median(times),
        used / (total / 1e6),
        {
            "batch_seconds_p99": times[-1],
            "log_bytes_per_batch": statistics.median(b.state_bytes for b in told[warm:]),
            "wire_bytes_per_batch": statistics.median(b.state_wire for b in told[warm:]),
        },
    )


def run(
    declare: Declare,
    checkpoint: Path,
    *,
    batches: int,
    overrides: Mapping[str, Any],
    listener: Callable[[int], None] | None = None,
) -> list[tg.BatchProgress]:
    """Run so many batches, one right after the other."""
    p = tg.Pipeline("ours")
    declare(p).sink(tg.sinks.Discard())
    told: list[tg.BatchProgress] = []

    def hear(progress: tg.BatchProgress) -> None:
        told.append(progress)
        if listener is not None:
            listener(len(told))
        if len(told) == batches:
            signal.raise_signal(signal.SIGINT)

    settings = {
        "engine.interval": "1 ms",
        "engine.checkpoint": str(checkpoint),
        "engine.parallelism": CORES,
        "admission.enabled": False,
        **overrides,
    }
    p.run(config=config.load(environ={}, overrides=settings), listeners=[hear])
    return told[:batches]


def peer(
    spark: SparkSession,
    source: Ticks,
    declare: Callable[[DataFrame], DataFrame],
    *,
    mode: str,
    batches: int,
    warm: int = 2,
    our_files: bool = False,
) -> Sample:
    """A query of Spark's own. Its checkpoint is written as Spark does without further settings; with
    `our_files`, as Tidegate has Spark write its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        if not our_files:
            stack.enter_context(_files_by_default(spark))
        before = cpu_seconds()
        rows = declare(source.load(spark, parallelism=CORES, first_rows=None))
        query = (
            rows.writeStream.format("noop")
            .outputMode(mode)
            .option("checkpointLocation", folder)
            .trigger(processingTime="0 seconds")
            .start()
        )
        wait_for(query, lambda: (last := query.lastProgress) is not None and last.batchId >= batches - 1)
        told = [progress for progress in query.recentProgress if progress.batchId < batches]
        query.stop()
        used = cpu_seconds() - before
    ends = [_epoch(p.timestamp) + p.batchDuration / 1000 for p in told]
    measured = sum(p.numInputRows for p in told[warm:])
    total = sum(p.numInputRows for p in told)
    times = sorted(p.batchDuration / 1000 for p in told[warm:])
    return Sample(
        measured / (ends[-1] - ends[warm - 1]),
        statistics.median(times),
        used / (total / 1e6),
        {"batch_seconds_p99": times[-1]},
    )


@contextmanager
def _files_by_default(spark: SparkSession) -> Iterator[None]:
    """Spark's checkpoints are written as if nobody had set anything."""
    session.write_checksums(spark, True)
    try:
        with session.changed(
            spark, {_FILE_MANAGER: f"{_CHECKPOINTING}.FileContextBasedCheckpointFileManager"}
        ):
            yield
    finally:
        session.write_checksums(spark, False)


def wait_for(query: StreamingQuery, reached: Callable[[], bool]) -> None:
    """Until a query of Spark's own has got there."""
    while not reached():
        if not query.isActive:
            raise SystemExit(f"Spark ended its query: {query.exception()}")
        time.sleep(0.02)


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
