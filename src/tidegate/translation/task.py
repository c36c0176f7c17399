"""What a Spark task does with an operator: fetch, apply, stage, hand on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidegate import faults
from tidegate.operators.operator import Operator
from tidegate.state.table.table import HASH
from tidegate.state.task.assignment import Assignment
from tidegate.state.task.state import TaskState
from tidegate.translation.delay import DelayedState

PARTITION = "_partition"
"""Says which partition a row belongs to, in rows that are there only to say so; null in all others."""


@dataclass(frozen=True, slots=True)
class Task:
    """The function of one keyed step in one batch, for `mapInArrow`. It is pickled into every task."""

    operator: Operator
    assignment: Assignment
    arranged: pa.Schema
    """The columns that it gets."""
    marked: bool
    """Whether Spark numbers the partitions of a union anew. There each partition gets a row that tells it its
    own number; elsewhere Spark's number is the partition's."""
    delay: int
    """Microseconds that its rows may be behind the watermark."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import SparkFiles

        operator, assignment = self.operator, self.assignment
        faults.adopt(assignment.faults)
        faults.enter("executor")
        batch_id = assignment.ticket.batch_id
        faults.reach("task.begin", batch_id)
        rows, partition = _gathered(batches, self.arranged, marked=self.marked)
        state = TaskState(assignment, partition, Path(SparkFiles.getRootDirectory()))
        seen = DelayedState(state, self.delay) if self.delay else state
        result = operator.apply(rows, seen, assignment.time.delayed(self.delay))
        faults.reach("task.fetched", batch_id)
        state.stage(operator.tables, result.late)
        faults.reach("task.staged", batch_id)
        yield from result.rows.select(operator.output.names).cast(operator.output).to_batches(65_536)


def _gathered(
    batches: Iterator[pa.RecordBatch], arranged: pa.Schema, *, marked: bool
) -> tuple[pa.Table, int]:
    """All rows of the task, hashes as unsigned numbers, and the number of its partition."""
    from pyspark import TaskContext

    parts = [batch.rename_columns(arranged.names) for batch in batches]
    rows = pa.Table.from_batches(parts, arranged if not parts else None).combine_chunks()
    if marked:
        partition = rows[PARTITION].drop_null()[0].as_py()
        rows = rows.filter(rows[PARTITION].is_null()).drop_columns([PARTITION])
    else:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
    place = rows.schema.get_field_index(HASH)
    hashes = pa.chunked_array([chunk.view(pa.uint64()) for chunk in rows[HASH].chunks], pa.uint64())
    return rows.set_column(place, pa.field(HASH, pa.uint64(), False), hashes), partition
