"""The rows of a stream by key, where a later row takes the place of an earlier one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.operators.kit.keys import combined, expanded, written
from tidegate.operators.kit.row_operator import AT, RowOperator, time_buffer, with_due
from tidegate.operators.kit.sides import TIE, TIME, Sides, joined
from tidegate.operators.kit.spans import RowNumbers, listed, numbers, unlisted
from tidegate.operators.operator import State
from tidegate.state.table.keys import whole
from tidegate.state.table.table import StateTable

_VERSIONS, _TIME, _TIE = "versions", "time", "tie"
_FIRST = -(2**63)


@dataclass(frozen=True, eq=False)
class History:
    """Versions sorted by the number of their key, then from the earliest to the latest."""

    number: RowNumbers
    times: NDArray[np.int64]
    rows: pa.Table
    """With the key columns."""

    def latest(self, number: RowNumbers, times: NDArray[np.int64] | None) -> RowNumbers:
        """The latest version of each key that is not later than its time, if there is one; or -1."""
        mine, theirs = number, self.number
        if times is not None:
            mine, theirs = combined(np.concatenate([mine, theirs]), times, self.times)
        found = np.searchsorted(theirs, mine, side="right") - 1
        there = found >= 0
        there[there] = self.number[found[there]] == number[there]
        return np.where(there, found, -1)

    def newest(self) -> History:
        """The latest version of each key alone."""
        return self._where(np.diff(self.number, append=-1) != 0)

    def kept(self, watermark: int | None) -> History:
        """What rows that are still to come may ask for."""
        last_of_time = (np.diff(self.number, append=-1) != 0) | (np.diff(self.times, append=_FIRST) != 0)
        found = self._where(last_of_time)
        if watermark is None:
            return found
        passed = found.times <= watermark
        # Passed, and so is the next version of the same key.
        over = passed & np.append(passed[1:] & (found.number[1:] == found.number[:-1]), False)
        return found._where(~over)

    def spread(self, number: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """The rows of these keys, one key after the other, and where each begins."""
        begin = np.searchsorted(self.number, number, side="left")
        counts = np.searchsorted(self.number, number, side="right") - begin
        return expanded(begin, counts), np.cumsum(counts) - counts

    def _where(self, mask: NDArray[np.bool_]) -> History:
        return History(self.number[mask], self.times[mask], self.rows.filter(pa.array(mask)).combine_chunks())


@dataclass(frozen=True)
class Lookup(RowOperator):
    """Left rows that meet the current versions of right ones: the latest row of each key.

    If both streams have an event time, a left row meets the versions as they were at its time, and leaves
    when the watermark is past it; rows without event time are left out, and a left row that comes later than
    it would have left is dropped and counted. Without event time on either side it leaves at once, and the
    right rows of its own batch count already.

    Of each right key the versions are kept that may still be asked for: where rows are timed, all that are
    newer than the watermark and the newest that is not; else the latest. A version is later by its event time
    if the stream has one, else by its batch; of two that are equal in that, a fixed order decides. A key is
    known for ever.
    """

    left: StateTable
    """The left rows: where they are timed, they stay until the watermark is past them."""
    right: StateTable
    """The versions of each key."""

    @property
    def timed(self) -> bool:
        return self.left in self.tables

    def leaving(self, given: pa.Table, state: State, time: Time) -> tuple[pa.Table, int]:
        """The left rows that leave now, and how many came too late."""
        if self.timed:
            return self.release(0, with_due(given, 0), state, time)
        side = self.sides.each[0]
        return side.rows(given, pa.schema([*self.left.probes, *side.values])), 0

    def history(
        self,
        keys: pa.Table,
        known: pa.Table,
        known_number: RowNumbers,
        fresh: pa.Table,
        fresh_number: RowNumbers,
    ) -> History:
        """All versions of the keys in `known`, rows of the table, and `fresh`, rows of this batch.

        `keys` are the key columns of each number.
        """
        side = self.sides.each[1]
        older, parent = unlisted(known[_VERSIONS])
        has_time = side.event_time is not None
        micros = numbers(whole(fresh[TIME]), _FIRST) if has_time else np.zeros(fresh.num_rows, np.int64)
        fresh = fresh.append_column(_TIME, pa.array(micros)).append_column(_TIE, fresh[TIE])
        rows = pa.concat_tables([older, side.rows(fresh, older.schema)]).combine_chunks()
        number = np.concatenate([known_number[parent], fresh_number])
        arrival = (np.arange(rows.num_rows) >= older.num_rows) & (not has_time)
        times = rows[_TIME].to_numpy()
        order = np.lexsort((numbers(whole(rows[_TIE])), times, arrival, number))
        rows = rows.take(pa.array(order))
        for column in side.kept:
            if column in keys.column_names:
                rows = rows.append_column(column, keys[column].take(pa.array(number[order])))
        return History(number[order], times[order], rows.combine_chunks())

    def written(
        self, history: History, keys: pa.Table, number: RowNumbers, watermark: int | None
    ) -> pa.Table:
        """The rows to put for `keys` (as `right.probes`), each with the number of its versions."""
        kept = history.kept(watermark) if self.timed else history.newest()
        order, starts = kept.spread(number)
        values = self.sides.each[1].values.names
        rows = kept.rows.select([_TIME, _TIE, *values]).take(pa.array(order))
        return written(self.right, keys, [listed(rows, starts)])

    def current(self, history: History, left: pa.Table, rows: RowNumbers, number: RowNumbers) -> RowNumbers:
        """For each of these left rows, the version of the key `number` that it meets, or -1."""
        return history.latest(number, left[AT].to_numpy()[rows] if self.timed else None)


def lookup(
    step: str, both: Sides, left_keys: pa.Schema, right_keys: pa.Schema, *, right: str
) -> tuple[Sides, tuple[StateTable, ...], pa.Schema, StateTable, StateTable]:
    """The fields of a `Lookup`, whose tables are named after the step and `right`."""
    first, second = both.each
    timed = first.event_time is not None and second.event_time is not None
    fields = pa.schema([pa.field(_TIME, pa.int64()), pa.field(_TIE, pa.int64()), *second.values])
    versions = pa.schema({_VERSIONS: pa.list_(pa.struct(fields))})
    added = right_keys.names[: len(right_keys) - len(second.key)]
    table = StateTable(f"{step}.{right}", "value", right_keys, versions, (*added, *second.key))
    left = time_buffer(f"{step}.left", left_keys, first)
    return both, (left, table) if timed else (table,), joined(first, second), left, table
