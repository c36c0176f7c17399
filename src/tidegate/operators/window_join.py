"""Pairs of rows of two streams with equal keys in the same window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.keys import pairs
from tidegate.operators.kit.row_operator import Join, require_event_times
from tidegate.operators.kit.sides import TIME, joined, sides
from tidegate.operators.kit.windows import BOUNDS, pane, stamps
from tidegate.operators.operator import Input, Result, State, WithinPartitions
from tidegate.pipeline import keyed_step as steps
from tidegate.pipeline.window import START, Sliding, Tumbling, lengths
from tidegate.state.table.keys import hash_column, same
from tidegate.state.table.table import DUE, HASH, StateTable


@dataclass(frozen=True)
class WindowJoin(Join):
    """Both sides wait until the watermark passes the end of their window, then they are paired in bulk.

    A null key joins nothing. A row without event time is in no window and is left out. A row that comes
    after its window was closed is dropped and counted, once for each window it missed.
    """

    size: int
    """Microseconds, as is `every`."""
    every: int

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        last = pane(F.col(TIME), self.every) + self.size
        ends = [last - number * self.every for number in range(self.size // self.every)]
        frame = self.joinable(rows).withColumn(DUE, ends[0] if len(ends) == 1 else F.explode(F.array(*ends)))
        return frame.drop(TIME).withColumn(HASH, hashed([*self.sides.keys.names, DUE]))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        rows = rows.append_column(START, pa.array(rows[DUE].to_numpy() - self.size))
        (left, left_late), (right, right_late) = (
            self.release(number, mine, state, time) for number, mine in enumerate(self.sides.split(rows))
        )
        hashes = hash_column(left[HASH])
        order = np.argsort(hashes, kind="stable")
        found, partners = pairs(hashes[order], hashes[order], hash_column(right[HASH]))
        rows = order[found]
        keys = [*self.sides.keys.names, START]
        # Different keys may share a hash.
        equal = same(
            [left[key].take(pa.array(rows)) for key in keys],
            [right[key].take(pa.array(partners)) for key in keys],
        )
        left_rows, right_rows = self.with_unmatched(left, rows[equal], partners[equal])
        starts = left[START].to_numpy()[left_rows.to_numpy()]
        bounds = stamps(starts), stamps(starts + self.size)
        joined_rows = self.paired(left, left_rows, right, right_rows, *bounds)
        return Result(joined_rows, left_late + right_late)


def from_step(step: steps.WindowJoin, left: Input, right: Input) -> WindowJoin:
    window = step.window
    if not isinstance(window, Tumbling | Sliding):
        raise PipelineError(f"joins tumbling and sliding windows, not {window.describe()}")
    require_event_times(left, right)
    both = sides(left, right)
    keys = pa.schema([*both.keys, pa.field(START, pa.int64())])
    tables = tuple(
        StateTable(f"{step.name}.{part}", "buffer", keys, side.values, (*side.key, START), (START,))
        for part, side in zip(("left", "right"), both.each, strict=True)
    )
    output = joined(*both.each, *BOUNDS)
    return WindowJoin(both, tables, output, step.how, *lengths(window))
