"""Rows on their way into PostgreSQL. Executors import this module by name; it needs psycopg."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidegate.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

Connection = psycopg.Connection[Any]

TASK = "_tidegate_task"
ROW = "_tidegate_row"
_CONNECT_SECONDS = 10


def connect(dsn: str) -> Connection:
    """Connect, with a limit on the wait and without the DSN in what may be raised."""
    try:
        settings = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise SinkError(
            "cannot parse the DSN of a Postgres sink; write it like postgresql://user@host/db"
        ) from None
    settings.setdefault("connect_timeout", _CONNECT_SECONDS)
    settings.setdefault("application_name", "tidegate")
    return psycopg.connect(**settings, autocommit=True)  # type: ignore[arg-type]


def copy_partition(dsn: str, statement: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: copy a partition in one transaction; answer with its number, the task's id and the rows.

    Each row goes with the task's id and its place in the partition, as the last two columns.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "copies run in Spark tasks"
    # No two tasks of a Spark application have the same, and the staging table is this run's own.
    task = context.taskAttemptId()
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    count = 0
    with (
        connect(dsn) as connection,
        connection.transaction(),
        connection.cursor().copy(statement) as copy,
    ):
        for batch in chain([first], filled):
            copy.write(_csv(batch, task, count))
            count += batch.num_rows
    answer = {"partition": context.partitionId(), "task": task, "rows": count}
    yield pa.record_batch({name: pa.array([number], pa.int64()) for name, number in answer.items()})


def _csv(batch: pa.RecordBatch, task: int, start: int) -> memoryview:
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    tagged = batch.append_column(TASK, pa.repeat(pa.scalar(task, pa.int64()), batch.num_rows))
    tagged = tagged.append_column(ROW, pa.array(np.arange(start, start + batch.num_rows)))
    buffer = pa.BufferOutputStream()
    # Texts are quoted and nulls are not: that is how COPY tells "" from null.
    csv.write_csv(tagged, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return memoryview(buffer.getvalue())
