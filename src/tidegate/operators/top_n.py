"""The n rows of each key with the largest value of a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.lists import apart, list_of, together
from tidegate.operators.kit.pairs import Rows
from tidegate.operators.kit.sides import TIE, Sides, sides
from tidegate.operators.kit.spans import numbers, whole
from tidegate.operators.operator import Operator, Result, State, WithinPartitions
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode
from tidegate.state.table.keys import distinct, hash_column
from tidegate.state.table.table import HASH, NEVER, PROBE, StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BEST, _TIE, _RANK = "best", "tie", "rank"


@dataclass(frozen=True)
class TopN(Operator):
    """A key whose best rows changed leaves with all of them, with their `rank` from 1.

    Rows of equal value are ranked in a fixed order. As in Spark NaN is the largest number. A row in which
    the column is null is left out. A key is known for ever.
    """

    name: str
    n: int
    by: str
    """Where the column is in the shuffle."""
    sides: Sides
    tables: tuple[StateTable, ...]
    output: pa.Schema
    mode: Mode = "update"

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        from pyspark.sql import functions as F

        frame = self.sides.frame(rows, tie=True).where(F.col(self.by).isNotNull())
        return frame.withColumn(HASH, hashed(self.sides.keys.names))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        (table,), (side,), keys = self.tables, self.sides.each, self.sides.keys
        first, number = distinct(hash_column(rows[HASH]), [rows[key] for key in keys.names])
        if not len(first):
            return Result(self.output.empty_table())
        probes = rows.select(table.probes.names).take(pa.array(first)).cast(table.probes)
        known = state.get(table, probes)
        older, list_number = apart(known[_BEST])
        newer = side.rows(rows, side.values).add_column(0, _TIE, rows[TIE].cast(pa.int64()))
        every = pa.concat_tables([older, newer]).combine_chunks()
        number = np.concatenate([known[PROBE].to_numpy()[list_number], number])
        order = self._ranked(every, number, older.num_rows)
        number = number[order]
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        rank = np.arange(len(number)) - np.repeat(starts, np.diff(starts, append=len(number)))
        best = rank < self.n
        changed = np.zeros(len(first), np.bool_)
        changed[number[best & (order >= older.num_rows)]] = True
        leaving = best & changed[number]
        order, number, rank = order[leaving], number[leaving], rank[leaving]
        if not len(order):
            return Result(self.output.empty_table())
        best_rows = every.take(pa.array(order))
        state.put(table, self._written(probes.filter(pa.array(changed)), best_rows, number))
        row_keys = probes.select(keys.names).take(pa.array(number))
        for index, name in enumerate(keys.names):
            best_rows = best_rows.append_column(name, row_keys[index])
        columns = side.take(best_rows, pa.array(np.arange(len(order))))
        ranks = pa.array((rank + 1).astype(np.int32))
        return Result(pa.Table.from_arrays([*columns, ranks], schema=self.output))

    def _ranked(self, rows: pa.Table, number: Rows, older: int) -> Rows:
        """The order by key, value and tie; of equal rows the one that was there already comes first."""
        (side,) = self.sides.each
        value = whole(rows[side.kept[side.shuffled.index(self.by)]])
        # Arrow ranks NaN last, as Spark does.
        ranks = pc.rank(value, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
        newer = np.arange(len(number)) >= older
        return np.lexsort((newer, numbers(whole(rows[_TIE])), -ranks, number))

    def _written(self, keys: pa.Table, rows: pa.Table, number: Rows) -> pa.Table:
        (table,) = self.tables
        columns = [
            keys[HASH],
            pa.array(np.full(keys.num_rows, NEVER)),
            pa.array(np.zeros(keys.num_rows, np.bool_)),
            *keys.columns[1:],
            together(rows, np.flatnonzero(np.diff(number, prepend=-1))),
        ]
        return pa.Table.from_arrays(columns, schema=table.written)


def from_step(step: steps.TopN, given: Input) -> TopN:
    """The operator of a declared step."""
    names = given.schema.names
    if step.by not in names:
        raise PipelineError(f"by={step.by!r} is not among the columns {names}")
    if step.by in given.keys:
        raise PipelineError(f"by={step.by!r} is the key, so all rows of a key would be equal")
    if _RANK in names:
        raise PipelineError("there is a column 'rank' already, which this step adds; rename it first")
    one = sides(given)
    (side,) = one.each
    kind = side.schema.field(step.by).type
    if pa.types.is_nested(kind):
        raise PipelineError(f"by={step.by!r} is a {kind}, which has no order")
    best = list_of(pa.schema([pa.field(_TIE, pa.int64()), *side.values]))
    table = StateTable(step.name, "value", one.keys, pa.schema({_BEST: best}))
    by = side.shuffled[names.index(step.by)]
    return TopN(step.name, step.n, by, one, (table,), pa.schema([*side.schema, pa.field(_RANK, pa.int32())]))
