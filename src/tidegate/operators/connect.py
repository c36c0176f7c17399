"""Each row of a stream with the latest row of another that has the same key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.sides import TIME, Sides, joined, maybe, named_alike, sides
from tidegate.operators.kit.versions import Versions, versions
from tidegate.operators.kit.waiting import WAITED, called, waiting_room
from tidegate.operators.operator import SIDE, Operator, Result, State, WithinPartitions
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode
from tidegate.state.table.keys import distinct, hash_column
from tidegate.state.table.table import HASH, PROBE, StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Connect(Operator):
    """If both streams have an event time, a left row gets the right row that was the latest at its time.

    It leaves when the watermark is past that time; rows without event time are left out, and a left row that
    comes later than it would have left is dropped and counted. Without event time on either side a left row
    leaves at once, with the latest right row of this batch or an earlier one. A left row without partner
    leaves with nulls. A null key is a key like any other.
    """

    name: str
    sides: Sides
    versions: Versions
    tables: tuple[StateTable, ...]
    """The right one; where left rows wait, before it that of the left."""
    output: pa.Schema
    mode: Mode = "append"

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        from pyspark.sql import functions as F

        frame = self.sides.frame(rows, tie=True)
        if self.versions.timed:
            frame = frame.where(F.col(TIME).isNotNull())
        return frame.withColumn(HASH, hashed(self.sides.keys.names))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        side = rows[SIDE].to_numpy()
        given, fresh = (rows.filter(pa.array(side == number)).combine_chunks() for number in (0, 1))
        left, late = self._leaving(given, state, time)
        table, keys = self.versions.table, self.sides.keys.names
        asked = pa.concat_tables(
            [rows.select(table.probes.names).cast(table.probes) for rows in (fresh, left)]
        )
        first, number = distinct(hash_column(asked[HASH]), [asked[key] for key in keys])
        if not len(first):
            return Result(self.output.empty_table(), late)
        fresh_number, left_number = np.split(number, [fresh.num_rows])
        probes = asked.take(pa.array(first))
        known = state.get(table, probes)
        history = self.versions.history(
            probes.select(keys), known, known[PROBE].to_numpy(), fresh, fresh_number
        )
        changed = np.unique(fresh_number)
        if len(changed):
            written = self.versions.written(history, probes.take(pa.array(changed)), changed, time.watermark)
            state.put(table, written)
        if self.versions.timed:
            found = history.as_of(left_number, left[WAITED].to_numpy())
        else:
            found = history.latest(left_number)
        columns = [
            *self.sides.each[0].take(left, pa.array(np.arange(left.num_rows))),
            *self.sides.each[1].take(history.rows, maybe(found)),
        ]
        return Result(pa.Table.from_arrays(columns, schema=self.output), late)

    def _leaving(self, given: pa.Table, state: State, time: Time) -> tuple[pa.Table, int]:
        """The left rows that leave now, and how many came too late."""
        (side, _), probes = self.sides.each, self.versions.table.probes
        if self.versions.timed:
            return called(side, self.tables[0], given, 0, state, time)
        return side.rows(given, pa.schema([*probes, *side.values])), 0


def from_step(step: steps.Connect, left: Input, right: Input) -> Connect:
    """The operator of a declared step."""
    both = sides(left, right, without=named_alike(left, right))
    timed = left.event_time is not None and right.event_time is not None
    kept = versions(f"{step.name}.right", both.keys, both.each[1], timed=timed)
    waiting = (waiting_room(f"{step.name}.left", both.keys, both.each[0]),) if timed else ()
    return Connect(step.name, both, kept, (*waiting, kept.table), joined(*both.each))
