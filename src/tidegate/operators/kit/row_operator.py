"""What operators over whole rows have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.sides import Sides
from tidegate.operators.kit.spans import RowNumbers
from tidegate.operators.operator import SIDE, Input, Operator, WithinPartitions
from tidegate.state.table.table import HASH, StateTable


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


def require_event_times(left: Input, right: Input) -> None:
    """Raise a PipelineError where a join by event time has none on one side."""
    for which, given in (("left", left), ("right", right)):
        if given.event_time is None:
            raise PipelineError(f"the {which} stream has no event time; give its source event_time='column'")
