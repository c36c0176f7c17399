"""What the engine costs: the same source and sink under Tidegate and under plain Structured Streaming.

Also: what a batch does when twice as much comes in as the machine can do.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from benchmarks.comparison import Row, Sample, cpu_seconds, in_turns, tell
from examples.map_job import fibonacci
from tidegate import config
from tidegate.spark import session

CASES = (
    # name, whether mapped, sink
    ("pass-through, discarded", False, "noop"),
    ("pass-through to Parquet", False, "parquet"),
    ("map job to Parquet", True, "parquet"),
)
MAPPED = "id bigint, timestamp timestamp, value double, fibonacci bigint"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.passthrough", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns: under five minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--plot", type=Path, help="draw batch time and lag under overload into this file")
    asked = parser.parse_args()
    turns, batches, seconds = (3, 7, 25) if asked.quick else (7, 15, 60)
    spark = session.start("passthrough", master="local[2]")
    rows = []
    for name, mapped, sink in CASES:
        size = _second(spark, mapped, sink)
        ours, peer = _ours(mapped, sink, size, batches), _peer(spark, mapped, sink, size, batches)
        ours()  # Both warm.
        rows.append(in_turns(name, ours, peer, turns=turns, at_least=0.9))
    rows.append(_overload(rows[-1].ours, seconds, asked.plot))
    spark.stop()
    tell("Tidegate against plain Structured Streaming, 2 cores", rows, as_json=asked.json)


def _ours(mapped: bool, sink: str, size: int, batches: int) -> Callable[[], Sample]:
    def measure() -> Sample:
        with tempfile.TemporaryDirectory() as folder:
            p = tg.Pipeline("ours")
            stream = p.source(tg.sources.Sensors(rate=None, rows=size * batches))
            stream = stream.map_arrow(fibonacci, MAPPED) if mapped else stream
            stream.sink(tg.sinks.Discard() if sink == "noop" else tg.sinks.Files(f"{folder}/out"))
            told = _run(p, folder, interval="1 ms", least=size, most=size)
            return _sample([(b.finished_at.timestamp(), b.rows_in, b.batch_seconds) for b in told])

    return _with_cpu(measure, size * batches)


def _peer(spark: SparkSession, mapped: bool, sink: str, size: int, batches: int) -> Callable[[], Sample]:
    def measure() -> Sample:
        with tempfile.TemporaryDirectory() as folder:
            source = tg.sources.Sensors(rate=None, rows=size * batches)
            frame: DataFrame = source.load(spark, parallelism=2, first_rows=size)
            if mapped:
                frame = frame.mapInArrow(lambda parts: map(fibonacci, parts), MAPPED)
            query = (
                frame.writeStream.format(sink)
                .option("checkpointLocation", f"{folder}/checkpoint")
                .option("path", f"{folder}/out")
                .trigger(processingTime="0 seconds")
                .start()
            )
            while (last := query.lastProgress) is None or last.batchId < batches - 1:
                time.sleep(0.02)
            told = [progress for progress in query.recentProgress if progress.numInputRows]
            query.stop()
            return _sample(
                [
                    (_epoch(p.timestamp) + p.batchDuration / 1000, p.numInputRows, p.batchDuration / 1000)
                    for p in told
                ]
            )

    return _with_cpu(measure, size * batches)


def _second(spark: SparkSession, mapped: bool, sink: str) -> int:
    """Rows that plain Spark does in a second, the interval that a pipeline has when nothing is said."""
    size = 1_000_000
    for _ in range(2):
        size = int(_peer(spark, mapped, sink, size, 5)().rows_per_second)
    return size


def _with_cpu(measure: Callable[[], Sample], rows: int) -> Callable[[], Sample]:
    def measured() -> Sample:
        before = cpu_seconds()
        sample = measure()
        used = cpu_seconds() - before
        return Sample(sample.rows_per_second, sample.batch_seconds, used / (rows / 1e6))

    return measured


def _sample(batches: list[tuple[float, int, float]]) -> Sample:
    """From (end, rows, seconds) of each batch; the first one starts workers and is left out."""
    wall = batches[-1][0] - batches[0][0]
    rows = sum(rows for _, rows, _ in batches[1:])
    return Sample(rows / wall, statistics.median(seconds for _, _, seconds in batches[1:]), 0.0)


def _overload(capacity: float, seconds: float, plot: Path | None) -> Row:
    """Twice the capacity comes in: the batch keeps its time, and what is too much waits in the source."""
    with tempfile.TemporaryDirectory() as folder:
        p = tg.Pipeline("overload")
        stream = p.source(tg.sources.Sensors(rate=2 * capacity))
        stream.map_arrow(fibonacci, MAPPED).sink(tg.sinks.Files(f"{folder}/out"))
        told = _run(p, folder, interval="1 s", least=100, most=50_000_000, duration=seconds)
    if plot is not None:
        _draw(told, plot)
    # The limit starts low on purpose and doubles its way up.
    settled = told[len(told) // 3 :]
    shares = [batch.batch_seconds / batch.interval_seconds for batch in settled]
    median = statistics.median(shares)
    quarters = statistics.quantiles(shares, n=4)
    lags = [batch.lag or 0 for batch in settled]
    return Row(
        name="overload: batch time against interval",
        ours=median * settled[0].interval_seconds,
        peer=settled[0].interval_seconds,
        unit="s",
        ratio=median,
        goal="0.75 to 1.25, lag grows",
        met=quarters[0] >= 0.75 and quarters[2] <= 1.25 and lags[-1] > lags[0],
        spread=(quarters[0], quarters[2]),
        details={
            "lag at first": lags[0],
            "lag at last": lags[-1],
            "input rows/s": statistics.median(batch.input_rate for batch in settled),
            "taken rows/s": statistics.median(batch.rows_per_second for batch in settled),
            "share of batches within 25 %": sum(0.75 <= share <= 1.25 for share in shares) / len(shares),
        },
    )


def _run(
    pipeline: tg.Pipeline,
    folder: str,
    *,
    interval: str,
    least: int,
    most: int,
    duration: float | None = None,
) -> list[tg.BatchProgress]:
    shutil.rmtree(f"{folder}/checkpoint", ignore_errors=True)
    told: list[tg.BatchProgress] = []
    settings = config.load(
        environ={},
        overrides={
            "engine.interval": interval,
            "engine.parallelism": 2,
            "engine.checkpoint": f"{folder}/checkpoint",
            "admission.min_rows": least,
            "admission.max_rows": most,
        },
    )
    pipeline.run(config=settings, listeners=[told.append], duration=duration, until_done=duration is None)
    return told


def _draw(told: list[tg.BatchProgress], path: Path) -> None:
    import matplotlib.pyplot as plt

    start = told[0].finished_at
    seconds = [(batch.finished_at - start).total_seconds() for batch in told]
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained")
    above.plot(seconds, [batch.batch_seconds for batch in told], marker=".", label="batch")
    above.axhline(told[0].interval_seconds, color="grey", linestyle="--", label="interval")
    above.axhspan(0.75 * told[0].interval_seconds, 1.25 * told[0].interval_seconds, alpha=0.1)
    above.set(ylabel="batch time (s)", ylim=(0, None), title="Twice the rate that the machine can take")
    above.legend(loc="lower right")
    below.plot(seconds, [(batch.lag or 0) / 1e6 for batch in told], color="tab:red")
    below.set(ylabel="lag (M rows)", xlabel="seconds", ylim=(0, None))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _epoch(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    main()
