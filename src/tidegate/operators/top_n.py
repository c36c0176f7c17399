"""The n rows of each key with the largest value of a column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.keys import numbered, written
from tidegate.operators.kit.row_operator import RowOperator
from tidegate.operators.kit.sides import TIE, sides
from tidegate.operators.kit.spans import RowNumbers, listed, numbers, unlisted
from tidegate.operators.operator import Input, Result, State, WithinPartitions
from tidegate.pipeline import keyed_step as steps
from tidegate.sources.columns import missing
from tidegate.state.table.keys import whole
from tidegate.state.table.table import PROBE, StateTable

_BEST, _TIE, _RANK = "best", "tie", "rank"


@dataclass(frozen=True)
class TopN(RowOperator):
    """A key whose best rows changed leaves with all of them, with their `rank` from 1.

    Rows of equal value are ranked in a fixed order. As in Spark NaN is the largest number. A row in which
    the column is null is left out. A key is known for ever.
    """

    n: int
    by: str
    """Where the column is in the shuffle."""

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        return super().arrange(rows, within_partitions).where(F.col(self.by).isNotNull())

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        (table,), (side,) = self.tables, self.sides.each
        keys, (number,) = numbered(table, rows)
        if not keys.num_rows:
            return Result(self.output.empty_table())
        known = state.get(table, keys)
        older, list_number = unlisted(known[_BEST])
        newer = side.rows(rows, side.values).add_column(0, _TIE, rows[TIE].cast(pa.int64()))
        every = pa.concat_tables([older, newer]).combine_chunks()
        number = np.concatenate([known[PROBE].to_numpy()[list_number], number])
        order = self._ranked(every, number, older.num_rows)
        number = number[order]
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        rank = np.arange(len(number)) - np.repeat(starts, np.diff(starts, append=len(number)))
        best = rank < self.n
        changed = np.zeros(keys.num_rows, np.bool_)
        changed[number[best & (order >= older.num_rows)]] = True
        leaving = best & changed[number]
        order, number, rank = order[leaving], number[leaving], rank[leaving]
        if not len(order):
            return Result(self.output.empty_table())
        best_rows = every.take(pa.array(order))
        lists = listed(best_rows, np.flatnonzero(np.diff(number, prepend=-1)))
        state.put(table, written(table, keys.filter(pa.array(changed)), [lists]))
        for name in self.sides.keys.names:
            best_rows = best_rows.append_column(name, keys[name].take(pa.array(number)))
        columns = side.take(best_rows, pa.array(np.arange(len(order))))
        ranks = pa.array((rank + 1).astype(np.int32))
        return Result(pa.Table.from_arrays([*columns, ranks], schema=self.output))

    def _ranked(self, rows: pa.Table, number: RowNumbers, older: int) -> RowNumbers:
        """The order by key, value and tie; of equal rows the one that was there already comes first."""
        (side,) = self.sides.each
        value = whole(rows[side.kept[side.shuffled.index(self.by)]])
        # Arrow ranks NaN last, as Spark does.
        ranks = pc.rank(value, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
        newer = np.arange(len(number)) >= older
        return np.lexsort((newer, numbers(whole(rows[_TIE])), -ranks, number))


def from_step(step: steps.TopN, given: Input) -> TopN:
    names = given.schema.names
    if step.by not in names:
        raise PipelineError(f"by={step.by!r}: {missing(names, step.by)}")
    if step.by in given.keys:
        raise PipelineError(f"by={step.by!r} is the key, so all rows of a key would be equal")
    if _RANK in names:
        raise PipelineError("there is a column 'rank' already, which this step adds; rename it first")
    one = sides(given)
    (side,) = one.each
    kind = side.schema.field(step.by).type
    if pa.types.is_nested(kind):
        raise PipelineError(f"by={step.by!r} is a {kind}, which has no order")
    best = pa.list_(pa.struct([pa.field(_TIE, pa.int64()), *side.values]))
    table = StateTable(step.name, "value", one.keys, pa.schema({_BEST: best}), side.key)
    by = side.shuffled[names.index(step.by)]
    output = pa.schema([*side.schema, pa.field(_RANK, pa.int32())])
    return TopN(one, (table,), output, step.n, by)
