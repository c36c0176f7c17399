"""What `benchmarks.hosts` runs on the hosts of its lab. Both print lines of JSON.

python -m benchmarks.on_host measure               # a job per line of input, what it took per line of output
python -m benchmarks.on_host query '{"master": ..., ...}'  # Spark's own, a line per batch
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import tidegate as tg
from benchmarks.rescale import payload, pipeline
from benchmarks.sides import Declare, ours
from benchmarks.state import ROCKSDB
from benchmarks.ticks import Ticks
from tidegate import config
from tidegate.cluster.standalone import Standalone
from tidegate.spark import session

INTERVAL = 1.0


def _count(p: tg.Pipeline) -> tg.Stream:
    source = Ticks(1_000_000, (("id", "value * 2654435761 % 100000"),))
    return p.source(source).key_by("id").aggregate(n=tg.agg.count())


def _join(p: tg.Pipeline) -> tg.Stream:
    left = Ticks(200_000, (("id", "value % 50000"), ("a", "value")), millis=4000)
    right = Ticks(200_000, (("id", "value % 50000"), ("b", "value")), millis=4000)
    return p.source(left).window_join(p.source(right), on="id", window=tg.tumbling("4 seconds"))


WORK: Mapping[str, Declare] = {"keyed count": _count, "4 s window join": _join}


def main(arguments: list[str]) -> None:
    # Whatever else is printed goes elsewhere.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(told: Mapping[str, Any]) -> None:
        out.write(json.dumps(told) + "\n")

    if arguments[0] == "measure":
        for line in sys.stdin:
            job = json.loads(line)
            say({"rows_per_second": _paced(**job) if "seconds" in job else _measured(**job)})
    else:
        _query(say, **json.loads(arguments[1]))


def _measured(work: str, batches: int, settings: Mapping[str, Any]) -> float:
    """Batches one right after the other."""
    return ours(WORK[work], batches=batches, overrides=settings).rows_per_second


def _paced(work: str, seconds: float, settings: Mapping[str, Any]) -> float:
    """Batches of an interval, each with as many rows as fit into it."""
    p = tg.Pipeline("paced")
    told: list[tg.BatchProgress] = []
    keyed = p.source(tg.sources.Sensors(sensors=100_000, rate=None, keys=tg.sources.Uniform())).key_by("id")
    if work == "1 kB per key":
        p = pipeline(1_000_000, None)
    else:
        keyed.aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given = {
            "engine.interval": f"{INTERVAL} seconds",
            "engine.checkpoint": str(Path(folder) / "c"),
            "admission.longest": "1 ms",
            "admission.initial_rows": 100_000,
            **settings,
        }
        p.run(config=config.load(environ={}, overrides=given), listeners=[told.append], duration=seconds)
    return statistics.median(batch.rows_per_second for batch in told[len(told) // 2 :])


def _query(
    say: Callable[[Mapping[str, Any]], None],
    *,
    master: str,
    checkpoint: str,
    keys: int,
    rate: float,
    partitions: int,
    memory: str,
    cores: int | None = None,
) -> None:
    """The stateful query that `benchmarks.rescale` compares with, until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    conf = {
        **Standalone(master, memory=memory).conf,
        **ROCKSDB,
        "spark.sql.shuffle.partitions": str(partitions),
    }
    # As Java starts by default: without the archive of classes that Tidegate has it use.
    conf["spark.driver.extraJavaOptions"] = "-Xshare:auto"
    conf |= {"spark.cores.max": str(cores)} if cores else {}
    spark = session.start("spark", master=master, driver_memory="1g", conf=conf)
    sources = (
        tg.sources.Sensors(sensors=keys, rate=None, rows=keys),
        tg.sources.Sensors(sensors=keys, rate=rate, keys=tg.sources.Uniform(), seed=1),
    )

    def discard(frame: DataFrame, batch: int) -> None:
        frame.write.format("noop").mode("append").save()
        say({"batch_id": batch, "finished_at": datetime.now(UTC).isoformat()})

    first, then = (source.load(spark, parallelism=partitions, first_rows=None) for source in sources)
    rows = first.unionByName(then).selectExpr("id", f"{payload()} as payload")
    query = (
        rows.groupBy("id")
        .agg({"payload": "max", "*": "count"})
        .writeStream.outputMode("update")
        .foreachBatch(discard)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=f"{INTERVAL} seconds")
        .start()
    )
    while not over.wait(0.1) and query.isActive:
        pass
    if query.exception() is not None:
        raise SystemExit(f"Spark ended its query: {query.exception()}")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
