"""Aggregates per key and session: windows that a pause closes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame

from tidegate.batch.time import Time
from tidegate.operators.kit.grouping import ROWS, TIME, Grouping
from tidegate.operators.kit.keys import due_now, numbered, written
from tidegate.operators.kit.partials import PART, Columns, rank
from tidegate.operators.kit.spans import RowNumbers, Spans, ascending, numbers, valid
from tidegate.operators.kit.windows import BOUNDS, stamps
from tidegate.operators.operator import Result, State
from tidegate.pipeline.window import EventTime, Session, in_micros
from tidegate.state.table.keys import whole
from tidegate.state.table.table import PROBE

FROM, TO = "session.start", "session.end"


@dataclass(eq=False)
class SessionAggregate(Grouping):
    """The aggregates of each session, when it is final.

    A session reaches from its first event to `gap` after its last one, and an event at that very moment
    still joins it; so it is final when the watermark has passed its end. A row without event time is late.

    State: one row per key, each column the list of its open sessions by start.
    """

    window: Session
    event_time: EventTime
    within = (TIME,)  # Which rows make a session is known in the task alone; those of one moment become one.

    def __post_init__(self) -> None:
        self.gap = in_micros(self.window.gap)
        ends = [pa.field(FROM, pa.int64()), pa.field(TO, pa.int64())]
        self.sessions = pa.schema([*ends, *self.partials.kept])
        lists = pa.schema([pa.field(field.name, pa.list_(field.type)) for field in self.sessions])
        self.keep(self.keys, lists, BOUNDS, times=(FROM, TO))

    def narrow(self, rows: DataFrame, *within: Column) -> DataFrame:
        return super().narrow(rows, self.event_time.micros().alias(TIME))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        rows, late = self._timely(rows, time.closed)
        touched, number, kept = self._with_state(rows, state, time)
        if not touched.num_rows:
            return Result(self.output.empty_table(), late)
        key, start, end, merged = self._joined(kept, rows, number)
        final = np.zeros(len(key), np.bool_) if time.watermark is None else end < time.watermark
        self._put(touched, key, {FROM: pa.array(start), TO: pa.array(end), **merged}, ~final, state)
        done = pa.array(np.flatnonzero(final))
        ended = {name: column.take(done) for name, column in merged.items()}
        columns = touched.take(pa.array(key[final])).columns[1:]
        columns += [stamps(start[final]), stamps(end[final]), *self.partials.finish(ended)]
        return Result(pa.Table.from_arrays(columns, schema=self.output), late)

    def _timely(self, rows: pa.Table, closed: int | None) -> tuple[pa.Table, int]:
        times = whole(rows[TIME])
        late = ~valid(times)
        if closed is not None:
            late |= numbers(times) + self.gap < closed
        return rows.filter(pa.array(~late)), int(numbers(whole(rows[ROWS]))[late].sum())

    def _with_state(self, rows: pa.Table, state: State, time: Time) -> tuple[pa.Table, RowNumbers, pa.Table]:
        """The keys that rows or the watermark touch, their number per session, and their sessions in state.

        The numbers are over the sessions and then the rows.
        """
        due = due_now(self.table, state, time)
        touched, (due_number, row_number) = numbered(self.table, due, rows)
        missing = np.setdiff1d(row_number, due_number)
        if len(missing):
            found = state.get(self.table, touched.take(pa.array(missing)))
            due_number = np.concatenate([due_number, missing[numbers(whole(found[PROBE]))]])
            due = pa.concat_tables([due, found.select(due.column_names)])
        kept = _flat(due.combine_chunks(), self.sessions)
        length = numbers(whole(pc.list_value_length(due[FROM])))
        return touched, np.concatenate([np.repeat(due_number, length), row_number]), kept

    def _joined(
        self, kept: pa.Table, rows: pa.Table, number: RowNumbers
    ) -> tuple[RowNumbers, RowNumbers, RowNumbers, Columns]:
        """Sessions after those that touch have become one: number of the key, start, end, partials."""
        times = numbers(whole(rows[TIME]))
        start = np.concatenate([numbers(whole(kept[FROM])), times])
        end = np.concatenate([numbers(whole(kept[TO])), times + self.gap])
        order = ascending(number, start, rank(kept.num_rows, rows, PART))
        number, start, end = number[order], start[order], end[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (number[1:] != number[:-1]) | (start[1:] > _reached(number, end)[:-1])
        spans = Spans(np.flatnonzero(first), len(order))
        merged = self.partials.merge(kept, rows, order, spans)
        return number[first], start[first], spans.reduce(np.maximum, end), merged

    def _put(
        self,
        touched: pa.Table,
        number: RowNumbers,
        sessions: Columns,
        stay: NDArray[np.bool_],
        state: State,
    ) -> None:
        """Keep the sessions that stay. The row of a key that has none is due, and goes by itself."""
        if not stay.any():
            return
        number, rows = number[stay], pa.array(np.flatnonzero(stay))
        spans = Spans.of(number)
        offsets = pa.array(np.append(spans.starts, spans.rows).astype(np.int32))
        lists = [
            pa.ListArray.from_arrays(offsets, column.take(rows), type=kind)
            for column, kind in zip(sessions.values(), self.table.values.types, strict=True)
        ]
        # Open sessions do not overlap, so the one that starts first ends first.
        due = numbers(sessions[TO])[stay][spans.starts] + 1
        keyed = touched.take(pa.array(number[spans.starts]))
        state.put(self.table, written(self.table, keyed, lists, due=due))


def _reached(number: RowNumbers, end: RowNumbers) -> RowNumbers:
    """The latest end so far, within each key."""
    levels, level = np.unique(end, return_inverse=True)
    # Numbers ascend, so a new key is above all that the keys before it reached.
    reached = np.maximum.accumulate(number * len(levels) + level)
    return np.asarray(levels[reached % max(len(levels), 1)])


def _flat(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of lists as one row per session. A column that a row lacks is null in all its sessions."""
    parents = pc.list_parent_indices(whole(rows[FROM])).to_numpy()
    columns = []
    for field in schema:
        lists = whole(rows[field.name])
        known = valid(lists)[parents]
        columns.append(lists.flatten().take(pa.array(np.cumsum(known) - 1, mask=~known)))
    return pa.Table.from_arrays(columns, schema=schema)
