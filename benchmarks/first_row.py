"""One start in a process of its own: `python -m benchmarks.first_row ours|peer FOLDER [RATE BATCHES]`.

A small keyed pipeline: a running count of emulated sensors, written to Parquet files. Prints a JSON line for
each batch that has rows, the first one when its output is there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import tidegate as tg
from benchmarks.sides import CORES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_row", description=__doc__)
    parser.add_argument("side", choices=["ours", "peer"])
    parser.add_argument("folder")
    parser.add_argument("--rate", type=float, default=RATE, help="rows per second")
    parser.add_argument("--batches", type=int, default=1)
    asked = parser.parse_args()
    source = tg.sources.Sensors(rate=asked.rate)
    (_ours if asked.side == "ours" else _peer)(source, asked.folder, asked.batches)


def _ours(source: tg.sources.Sensors, folder: str, batches: int) -> None:
    from tidegate import config

    p = tg.Pipeline("start")
    p.source(source).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(f"{folder}/out"))
    told: list[tg.BatchProgress] = []

    def hear(progress: tg.BatchProgress) -> None:
        told.append(progress)
        _tell(rows=progress.rows_in, lag=progress.lag or 0, seconds=progress.batch_seconds)
        if len(told) == batches:
            signal.raise_signal(signal.SIGINT)

    settings = {"spark.master": f"local[{CORES}]", "engine.checkpoint": f"{folder}/checkpoint"}
    p.run(config=config.load(environ={}, overrides=settings), listeners=[hear])


def _peer(source: tg.sources.Sensors, folder: str, batches: int) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", CORES)
        .getOrCreate()
    )
    left, over = [batches], threading.Event()

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.parquet(f"{folder}/out/{batch_id}")
        _tell(rows=0, lag=0, seconds=0.0)
        left[0] -= 1
        if not left[0]:
            over.set()

    query = (
        source.load(spark, parallelism=CORES, first_rows=10_000)
        .groupBy("id")
        .count()
        .writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    over.wait()
    query.stop()
    spark.stop()


def _tell(**measured: float) -> None:
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
