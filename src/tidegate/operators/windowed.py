"""Aggregates per key and window, for windows that do not depend on the rows: tumbling and sliding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.batch.time import Time
from tidegate.operators.kit.grouping import PANE, ROWS, Grouping
from tidegate.operators.kit.keys import due_now, numbered, where, written
from tidegate.operators.kit.partials import PART, Columns, rank
from tidegate.operators.kit.spans import Spans, ascending, numbers, valid
from tidegate.operators.kit.windows import BOUNDS, pane, stamps
from tidegate.operators.operator import Result, State
from tidegate.pipeline.step import Mode
from tidegate.pipeline.window import START, EventTime, Sliding, Tumbling, lengths
from tidegate.state.table.keys import whole
from tidegate.state.table.table import PROBE


@dataclass(eq=False)
class WindowAggregate(Grouping):
    """The aggregates of each key and window.

    `append`: once, when the watermark reaches the window's end. `update`: in each batch that touches it.
    A row without event time counts as late.
    """

    window: Tumbling | Sliding
    event_time: EventTime
    mode: Mode
    within = (PANE,)

    def __post_init__(self) -> None:
        self.size, self.every = lengths(self.window)
        keys = pa.schema([*self.keys, pa.field(START, pa.int64())])
        self.keep(keys, self.partials.kept, BOUNDS, times=(START,))

    def narrow(self, rows: DataFrame, *within: Column) -> DataFrame:
        return super().narrow(rows, pane(self.event_time.micros(), self.every).alias(PANE))

    def shuffled(self, partial: DataFrame) -> DataFrame:
        if self.size == self.every:
            return super().shuffled(partial.withColumn(START, F.col(PANE)))
        first = F.col(PANE) - (self.size - self.every)
        starts = F.explode_outer(F.sequence(first, F.col(PANE), F.lit(self.every)))
        return super().shuffled(partial.withColumn(START, starts))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        rows, late = self._timely(rows, time.closed)
        watermark = -(2**63) if time.watermark is None else time.watermark
        open_still = self._ends(rows) > watermark
        if self.mode == "update":
            windows, merged = self._with_state(rows, state)
            self._put(windows, merged, self._ends(windows) > watermark, state)
            return Result(self._finished(windows, merged), late)
        windows, merged = self._with_state(rows.filter(pa.array(open_still)), state)
        self._put(windows, merged, np.ones(windows.num_rows, np.bool_), state)
        # The windows that end with this batch: those in the state, and those that came and went with it.
        ended, passed = due_now(self.table, state, time), rows.filter(pa.array(~open_still))
        windows, number = numbered(self.table, ended, passed)
        merged = self._merged(ended, passed, np.concatenate(number))
        return Result(self._finished(windows, merged), late)

    def _timely(self, rows: pa.Table, closed: int | None) -> tuple[pa.Table, int]:
        """The rows that are not late, and how many rows of the input were."""
        starts = whole(rows[START])
        count, panes = numbers(whole(rows[ROWS])), whole(rows[PANE])
        known = valid(starts)
        late = ~known
        if closed is not None:
            late |= numbers(starts) + self.size <= closed
        # A row is in several windows; it is late when the last of them is, the one its pane begins.
        lost = late & (~known | (numbers(starts) == numbers(panes)))
        return rows.filter(pa.array(~late)), int(count[lost].sum())

    def _ends(self, rows: pa.Table) -> NDArray[np.int64]:
        return numbers(whole(rows[START])) + self.size

    def _with_state(self, rows: pa.Table, state: State) -> tuple[pa.Table, Columns]:
        """The windows of these rows, and their partials with what the state had."""
        windows, (number,) = numbered(self.table, rows)
        kept = state.get(self.table, windows) if rows.num_rows else self.table.answered.empty_table()
        return windows, self._merged(kept, rows, np.concatenate([numbers(whole(kept[PROBE])), number]))

    def _merged(self, kept: pa.Table, rows: pa.Table, number: NDArray[np.int64]) -> Columns:
        parts, panes = (rank(kept.num_rows, rows, name) for name in (PART, PANE))
        order = ascending(number, parts, panes)
        return self.partials.merge(kept, rows, order, Spans.of(number[order]))

    def _put(self, windows: pa.Table, merged: Columns, stay: NDArray[np.bool_], state: State) -> None:
        if stay.any():
            rows = written(self.table, windows, list(merged.values()), due=self._ends(windows))
            state.put(self.table, where(rows, stay))

    def _finished(self, windows: pa.Table, merged: Columns) -> pa.Table:
        key = [whole(windows[name]) for name in self.keys.names]
        spans = [stamps(whole(windows[START])), stamps(self._ends(windows))]
        columns = [*key, *spans, *self.partials.finish(merged)]
        return pa.Table.from_arrays(columns, schema=self.output)
