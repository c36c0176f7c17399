"""What operators over whole rows have in common: how rows are shuffled, wait in state, and are paired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.keys import due_now, where
from tidegate.operators.kit.sides import TIME, Side, Sides
from tidegate.operators.kit.spans import RowNumbers
from tidegate.operators.operator import SIDE, Input, Operator, State, WithinPartitions
from tidegate.state.table.table import DUE, HASH, StateTable

AT = "time"
"""Column of a buffer: the event time of a row, in microseconds."""


@dataclass(frozen=True)
class RowOperator(Operator):
    """Rows of one or two inputs, shuffled by their key."""

    sides: Sides
    tables: tuple[StateTable, ...]
    output: pa.Schema

    @property
    def timed(self) -> bool:
        """Whether rows without event time are left out."""
        return False

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        frame = self.sides.frame(rows, tie=True, timed=self.timed)
        return frame.withColumn(HASH, hashed(self.sides.keys.names))

    def paired(
        self, left: pa.Table, left_rows: pa.Array, right: pa.Table, right_rows: pa.Array, *before: pa.Array
    ) -> pa.Table:
        """Pairs of rows as kept, where a null is a row of nulls; the columns `before` come first."""
        first, second = self.sides.each
        columns = [*before, *first.take(left, left_rows), *second.take(right, right_rows)]
        return pa.Table.from_arrays(columns, schema=self.output)

    def buffer(
        self, number: int, rows: pa.Table, state: State, time: Time
    ) -> tuple[pa.Table, NDArray[np.bool_], int]:
        """The rows of this batch on side `number` that are on time, as its table has them; which of them are
        due now, so that only the others are put; and how many came too late."""
        table, due = self.tables[number], rows[DUE].to_numpy()
        on_time = np.ones(len(due), np.bool_) if time.closed is None else due > time.closed
        kept, due = where(self.sides.each[number].rows(rows, table.schema), on_time), due[on_time]
        ready = np.zeros(len(due), np.bool_) if time.watermark is None else due <= time.watermark
        if not ready.all():
            state.put(table, where(kept, ~ready))
        return kept, ready, int(len(on_time) - len(due))

    def release(self, number: int, rows: pa.Table, state: State, time: Time) -> tuple[pa.Table, int]:
        """The rows of side `number` that are due now, of those in state and of this batch; and how many came
        too late. The others of this batch are put."""
        kept, ready, late = self.buffer(number, rows, state, time)
        found = pa.concat_tables([due_now(self.tables[number], state, time), where(kept, ready)])
        return found.combine_chunks(), late


@dataclass(frozen=True)
class Join(RowOperator):
    """Pairs with equal keys, by event time. A null key joins nothing."""

    how: Literal["inner", "left"]

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        return self.joinable(rows).withColumn(HASH, hashed(self.sides.keys.names))

    def joinable(self, rows: DataFrame) -> DataFrame:
        """The rows that have an event time and may leave in a pair, or alone."""
        known = F.lit(True)
        for key in self.sides.keys.names:
            known = known & F.col(key).isNotNull()
        if self.how == "left":
            known = known | (F.col(SIDE) == 0)
        return self.sides.frame(rows, timed=True).where(known)

    def with_unmatched(
        self, left: pa.Table, left_rows: RowNumbers, right_rows: RowNumbers
    ) -> tuple[pa.Array, pa.Array]:
        """The rows of pairs; of a left join, then also the left rows without partner, each with a null."""
        partners = pa.array(right_rows)
        if self.how == "left":
            unmatched = np.ones(left.num_rows, np.bool_)
            unmatched[left_rows] = False
            alone = np.flatnonzero(unmatched)
            left_rows = np.concatenate([left_rows, alone])
            partners = pa.concat_arrays([partners, pa.nulls(len(alone), pa.int64())])
        return pa.array(left_rows), partners


def time_buffer(name: str, keys: pa.Schema, side: Side) -> StateTable:
    """The table of a side's rows with their event times."""
    values = pa.schema([pa.field(AT, pa.int64()), *side.values])
    return StateTable(name, "buffer", keys, values, side.key, (AT,))


def with_due(rows: pa.Table, delay: int) -> pa.Table:
    """Rows for such a table, due when the watermark is more than `delay` past their event time: as long as
    it is not, another row of that time may come."""
    micros = rows[TIME].to_numpy()
    return rows.append_column(DUE, pa.array(micros + (delay + 1))).append_column(AT, pa.array(micros))


def require_event_times(left: Input, right: Input) -> None:
    """Raise a PipelineError where a join by event time has none on one side."""
    for which, given in (("left", left), ("right", right)):
        if given.event_time is None:
            raise PipelineError(f"the {which} stream has no event time; give its source event_time='column'")
