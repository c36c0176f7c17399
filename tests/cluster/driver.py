"""A driver in a process of its own: a query that notes its batches, on a cluster that is told what to do.

    python -m tests.cluster.driver FOLDER local|spark://host:port

Each line of its input is a command, each line of its output the answer, in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.java import DRIVER_JAVA, EXECUTOR_JAVA, SMALL
from tidegate.cluster.local import LocalCluster
from tidegate.cluster.provider import Cluster
from tidegate.cluster.standalone import Standalone
from tidegate.spark import session
from tidegate.translation import task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MEMORY = "512m"
ROWS = 40
"""Of a batch."""
WARM = task.__name__
"""A module that no task of this query imports: a Python process that has it was warmed up."""


def main(folder: Path, where: str) -> None:
    """Run the query until told to stop, or killed."""
    cluster: Cluster = LocalCluster(1, 1, MEMORY) if where == "local" else Standalone(where, memory=MEMORY)
    executors = f"{cluster.conf.get(EXECUTOR_JAVA, '')} {SMALL}"
    conf = {**cluster.conf, DRIVER_JAVA: SMALL, EXECUTOR_JAVA: executors}
    spark = session.start("driver", master=cluster.master, driver_memory="512m", conf=conf)
    cluster.attach(spark)
    notes = (folder / "batches").open("a")

    def note(rows: DataFrame, batch_id: int) -> None:
        schema = "value long, executor string, pid long, attempt int, package string, warm boolean"
        found = rows.select("value").repartition(4).mapInArrow(_marked, schema).collect()
        notes.write(json.dumps({"id": batch_id, "rows": [list(row) for row in found]}) + "\n")
        notes.flush()

    query = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=2)
        .load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    _answer("ready")
    for line in sys.stdin:
        command, *words = line.split()
        match command:
            case "fit":
                _answer(cluster.fit(int(words[0])))
            case "executors":
                _answer(cluster.executors())
            case "pids":
                assert isinstance(cluster, LocalCluster)
                _answer(cluster.pids)
            case "query":
                _answer({"active": query.isActive, "run": str(query.runId), "error": str(query.exception())})
            case "close":
                query.stop()
                spark.stop()
                cluster.close()
                _answer("closed")


def _marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each value, and by whom it was seen."""
    import os
    import sys
    import time
    from pathlib import Path

    import pyarrow as pa
    from pyspark import TaskContext

    import tidegate

    context = TaskContext.get()
    assert context is not None
    # An executor works in a folder that is named by its number.
    where = (Path.cwd().name, os.getpid())
    mark = (*where, context.attemptNumber(), tidegate.__file__, WARM in sys.modules)
    kinds = (pa.string(), pa.int64(), pa.int32(), pa.string(), pa.bool_())
    time.sleep(0.05)  # Long enough that another executor with nothing to do gets a task.
    for batch in batches:
        marks = [pa.array([one] * len(batch), kind) for one, kind in zip(mark, kinds, strict=True)]
        names = ["value", "executor", "pid", "attempt", "package", "warm"]
        yield pa.RecordBatch.from_arrays([batch.column(0), *marks], names=names)


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
