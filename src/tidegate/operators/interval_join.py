"""Pairs of rows of two streams with equal keys and event times that lie close together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.operators.kit.keys import combined, numbered, pairs
from tidegate.operators.kit.row_operator import AT, Join, require_event_times, time_buffer, with_due
from tidegate.operators.kit.sides import joined, sides
from tidegate.operators.operator import Input, Result, State
from tidegate.pipeline import keyed_step as steps
from tidegate.pipeline.window import EventTime
from tidegate.state.table.table import PROBE


@dataclass(frozen=True)
class IntervalJoin(Join):
    """A left row leaves with its partners when no further one can come: the watermark is past t + after.

    Right rows are kept until no left row can need them. A null key joins nothing. Rows without event time
    are left out. A row is dropped and counted as late when it comes after it would have left or been let go.
    The event time of a pair is the later of both, so pairs are up to `after` behind the watermark.
    """

    before: int
    """Microseconds, as is `after`."""
    after: int

    def output_time(self, declared: EventTime | None) -> EventTime | None:
        left, right = self.sides.each
        assert declared is not None
        assert right.event_time is not None
        # A key that both sides call the same is not among them: it keeps its name.
        names = dict(zip(right.schema.names, self.output.names[len(left.schema) :], strict=True))
        return declared.paired(right.event_time.renamed(lambda name: names.get(name, name)))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        lefts, rights = self.sides.split(rows)
        left, late = self.release(0, with_due(lefts, self.after), state, time)
        right, _, right_late = self.buffer(1, with_due(rights, self.before + self.after), state, time)
        late += right_late
        if not left.num_rows:
            return Result(self.output.empty_table(), late)
        keys, _ = numbered(self.tables[1], left)
        kept = state.get(self.tables[1], keys).drop_columns([PROBE])
        right = pa.concat_tables([kept, right]).combine_chunks()
        _, (mine, theirs) = numbered(self.tables[1], left, right)
        micros = left[AT].to_numpy()
        low, high, times = combined(
            np.concatenate([mine, mine, theirs]),
            micros - self.before,
            micros + self.after,
            right[AT].to_numpy(),
        )
        left_rows, right_rows = self.with_unmatched(left, *pairs(low, high, times))
        return Result(self.paired(left, left_rows, right, right_rows), late)


def from_step(step: steps.IntervalJoin, left: Input, right: Input) -> IntervalJoin:
    require_event_times(left, right)
    both = sides(left, right)
    tables = tuple(
        time_buffer(f"{step.name}.{part}", both.keys, side)
        for part, side in zip(("left", "right"), both.each, strict=True)
    )
    before, after = round(step.before * 1e6), round(step.after * 1e6)
    return IntervalJoin(both, tables, joined(*both.each), step.how, before, after)
