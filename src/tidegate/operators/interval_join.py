"""Pairs of rows of two streams with equal keys and event times that lie close together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.pairs import Rows, combined, expanded, numbered
from tidegate.operators.kit.sides import TIME, Sides, joined, named_alike, padded, sides
from tidegate.operators.kit.waiting import WAITED, called, come_in, waiting_room
from tidegate.operators.operator import SIDE, Operator, Result, State, WithinPartitions
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode
from tidegate.state.table.keys import distinct, hash_column
from tidegate.state.table.table import HASH, PROBE, StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class IntervalJoin(Operator):
    """A left row leaves with its partners when no further one can come: the watermark is past t + after.

    Right rows are kept until no left row can need them. A null key joins nothing. Rows without event time
    are left out. A row is dropped and counted as late when it comes after it would have left or been let go.
    """

    name: str
    how: str
    before: int
    """Microseconds, as is `after`."""
    after: int
    sides: Sides
    tables: tuple[StateTable, ...]
    output: pa.Schema
    mode: Mode = "append"

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        from pyspark.sql import functions as F

        known = F.lit(True)
        for key in self.sides.keys.names:
            known = known & F.col(key).isNotNull()
        if self.how == "left":
            known = known | (F.col(SIDE) == 0)
        frame = self.sides.frame(rows).where(known & F.col(TIME).isNotNull())
        return frame.withColumn(HASH, hashed(self.sides.keys.names))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        side = rows[SIDE].to_numpy()
        lefts, rights = (rows.filter(pa.array(side == number)).combine_chunks() for number in (0, 1))
        left, late = called(self.sides.each[0], self.tables[0], lefts, self.after, state, time)
        reach = self.before + self.after
        right, on_time, ready = come_in(self.sides.each[1], self.tables[1], rights, reach, time)
        if (on_time & ~ready).any():
            state.put(self.tables[1], right.filter(pa.array(on_time & ~ready)))
        late += int(len(on_time) - on_time.sum())
        if not left.num_rows:
            return Result(self.output.empty_table(), late)
        kept = self._partners(left, state)
        right = pa.concat_tables([kept, right.filter(pa.array(on_time))]).combine_chunks()
        return Result(self._joined(left, right), late)

    def _partners(self, left: pa.Table, state: State) -> pa.Table:
        """The right rows that were kept for these keys."""
        table, keys = self.tables[1], self.sides.keys.names
        first, _ = distinct(hash_column(left[HASH]), [left[key] for key in keys])
        return state.get(table, left.select(table.probes.names).take(pa.array(first))).drop_columns([PROBE])

    def _joined(self, left: pa.Table, right: pa.Table) -> pa.Table:
        left_rows, right_rows = self._pairs(left, right)
        alone = np.empty(0, np.int64)
        if self.how == "left":
            unmatched = np.ones(left.num_rows, np.bool_)
            unmatched[left_rows] = False
            alone = np.flatnonzero(unmatched)
        columns = [
            *self.sides.each[0].take(left, pa.array(np.concatenate([left_rows, alone]))),
            *self.sides.each[1].take(right, padded(right_rows, len(alone))),
        ]
        return pa.Table.from_arrays(columns, schema=self.output)

    def _pairs(self, left: pa.Table, right: pa.Table) -> tuple[Rows, Rows]:
        """For each left row the stretch of right rows, sorted by key and time, that it meets."""
        keys = self.sides.keys.names
        mine, theirs = numbered(
            (hash_column(left[HASH]), [left[key] for key in keys]),
            (hash_column(right[HASH]), [right[key] for key in keys]),
        )
        micros = left[WAITED].to_numpy()
        low, high, times = combined(
            np.concatenate([mine, mine, theirs]),
            micros - self.before,
            micros + self.after,
            right[WAITED].to_numpy(),
        )
        order = np.argsort(times, kind="stable")
        begin = np.searchsorted(times[order], low, side="left")
        counts = np.searchsorted(times[order], high, side="right") - begin
        return np.repeat(np.arange(len(mine)), counts), order[expanded(begin, counts)]


def from_step(step: steps.IntervalJoin, left: Input, right: Input) -> IntervalJoin:
    """The operator of a declared step."""
    for which, given in (("left", left), ("right", right)):
        if given.event_time is None:
            raise PipelineError(f"the {which} stream has no event time; give its source event_time='column'")
    both = sides(left, right, without=named_alike(left, right))
    tables = tuple(
        waiting_room(f"{step.name}.{part}", both.keys, side)
        for part, side in zip(("left", "right"), both.each, strict=True)
    )
    before, after = round(step.before * 1e6), round(step.after * 1e6)
    return IntervalJoin(step.name, step.how, before, after, both, tables, joined(*both.each))
