"""Pairs of rows of two streams with equal keys in the same window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.pairs import pairs
from tidegate.operators.kit.sides import TIME, Sides, joined, named_alike, padded, sides
from tidegate.operators.kit.windows import lengths
from tidegate.operators.operator import SIDE, Operator, Result, State, WithinPartitions
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode
from tidegate.pipeline.window import Sliding, Tumbling
from tidegate.state.table.keys import hash_column
from tidegate.state.table.table import DUE, HASH, StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_START = "window_start"
_BOUNDS = pa.schema({_START: pa.timestamp("us", "UTC"), "window_end": pa.timestamp("us", "UTC")})


@dataclass(frozen=True)
class WindowJoin(Operator):
    """Both sides wait until the watermark passes the end of their window, then they are paired in bulk.

    A null key joins nothing. A row without event time is in no window and is left out. A row that comes
    after its window was closed is dropped and counted, once for each window it missed.
    """

    name: str
    how: str
    size: int
    """Microseconds, as is `every`."""
    every: int
    sides: Sides
    tables: tuple[StateTable, ...]
    output: pa.Schema
    mode: Mode = "append"

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        from pyspark.sql import functions as F

        frame = self.sides.frame(rows)
        known = F.lit(True)
        for key in self.sides.keys.names:
            known = known & F.col(key).isNotNull()
        if self.how == "left":
            known = known | (F.col(SIDE) == 0)
        last = F.col(TIME) - F.pmod(F.col(TIME), F.lit(self.every)) + self.size
        ends = [last - number * self.every for number in range(self.size // self.every)]
        frame = frame.where(known & F.col(TIME).isNotNull())
        frame = frame.withColumn(DUE, ends[0] if len(ends) == 1 else F.explode(F.array(*ends)))
        return frame.drop(TIME).withColumn(HASH, hashed([*self.sides.keys.names, DUE]))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        due = rows[DUE].to_numpy()
        on_time = due > time.closed if time.closed is not None else np.ones(len(due), np.bool_)
        ready = (
            on_time & (due <= time.watermark) if time.watermark is not None else np.zeros(len(due), np.bool_)
        )
        number = rows[SIDE].to_numpy()
        rows = rows.append_column(_START, pa.array(due - self.size))
        left, right = (
            self._ended(rows, number == side, on_time, ready, side, state, time) for side in (0, 1)
        )
        return Result(self._joined(left, right), int(len(due) - on_time.sum()))

    def _ended(
        self,
        rows: pa.Table,
        mine: NDArray[np.bool_],
        on_time: NDArray[np.bool_],
        ready: NDArray[np.bool_],
        side: int,
        state: State,
        time: Time,
    ) -> pa.Table:
        """The rows of one side whose windows end now; the others are put."""
        table, place = self.tables[side], self.sides.each[side]
        waiting = mine & on_time & ~ready
        if waiting.any():
            state.put(table, place.rows(rows.filter(pa.array(waiting)), table.written))
        ended = place.rows(rows.filter(pa.array(mine & ready)), table.schema)
        if time.watermark is None or time.watermark == time.closed:
            return ended
        return pa.concat_tables([state.due(table, time.watermark), ended]).combine_chunks()

    def _joined(self, left: pa.Table, right: pa.Table) -> pa.Table:
        keys = [*self.sides.keys.names, _START]
        left_rows, right_rows = pairs(
            hash_column(left[HASH]),
            [left[key] for key in keys],
            hash_column(right[HASH]),
            [right[key] for key in keys],
        )
        alone = np.empty(0, np.int64)
        if self.how == "left":
            unmatched = np.ones(left.num_rows, np.bool_)
            unmatched[left_rows] = False
            alone = np.flatnonzero(unmatched)
        chosen = pa.array(np.concatenate([left_rows, alone]))
        starts = left[_START].to_numpy()[chosen.to_numpy()]
        columns = [
            *(pa.array(micros).view(_BOUNDS.types[0]) for micros in (starts, starts + self.size)),
            *self.sides.each[0].take(left, chosen),
            *self.sides.each[1].take(right, padded(right_rows, len(alone))),
        ]
        return pa.Table.from_arrays(columns, schema=self.output)


def from_step(step: steps.WindowJoin, left: Input, right: Input) -> WindowJoin:
    """The operator of a declared step."""
    window = step.window
    if not isinstance(window, Tumbling | Sliding):
        raise PipelineError(f"joins tumbling and sliding windows, not {window.describe()}")
    for which, given in (("left", left), ("right", right)):
        if given.event_time is None:
            raise PipelineError(f"the {which} stream has no event time; give its source event_time='column'")
    size, every = lengths(window)
    both = sides(left, right, without=named_alike(left, right))
    keys = pa.schema([*both.keys, pa.field(_START, pa.int64())])
    tables = tuple(
        StateTable(f"{step.name}.{part}", "buffer", keys, side.values)
        for part, side in zip(("left", "right"), both.each, strict=True)
    )
    output = joined(*both.each, before=_BOUNDS)
    return WindowJoin(step.name, step.how, size, every, both, tables, output)
