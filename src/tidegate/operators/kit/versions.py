"""The rows of a stream by key, where a later row takes the place of an earlier one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.operators.kit.lists import apart, list_of, together
from tidegate.operators.kit.pairs import Rows, combined, expanded
from tidegate.operators.kit.sides import TIE, TIME, Side
from tidegate.operators.kit.spans import numbers, whole
from tidegate.state.table.table import NEVER, StateTable

_VERSIONS, _TIME, _TIE = "versions", "time", "tie"
_FIRST = -(2**63)


@dataclass(frozen=True)
class Versions:
    """What is kept of each key: its versions that may still be asked for.

    With `timed`, these are all versions newer than the watermark and the newest that is not; else the latest.
    A version is later by its event time if the stream has one, else by its batch; of two that are equal
    in that, a fixed order decides. A key is known for ever.
    """

    table: StateTable
    side: Side
    timed: bool

    def history(
        self, keys: pa.Table, known: pa.Table, known_number: Rows, fresh: pa.Table, fresh_number: Rows
    ) -> History:
        """All versions of the keys in `known`, rows of the table, and `fresh`, rows of this batch.

        `keys` are the key columns of each number.
        """
        older, parent = apart(known[_VERSIONS])
        has_time = self.side.event_time is not None
        micros = numbers(whole(fresh[TIME]), _FIRST) if has_time else np.zeros(fresh.num_rows, np.int64)
        fresh = fresh.append_column(_TIME, pa.array(micros)).append_column(_TIE, fresh[TIE])
        rows = pa.concat_tables([older, self.side.rows(fresh, older.schema)]).combine_chunks()
        number = np.concatenate([known_number[parent], fresh_number])
        arrival = (np.arange(rows.num_rows) >= older.num_rows) & (not has_time)
        times = rows[_TIME].to_numpy()
        order = np.lexsort((numbers(whole(rows[_TIE])), times, arrival, number))
        rows = rows.take(pa.array(order))
        for column in keys.column_names:
            rows = rows.append_column(column, keys[column].take(pa.array(number[order])))
        return History(number[order], times[order], rows.combine_chunks())

    def written(self, history: History, keys: pa.Table, number: Rows, watermark: int | None) -> pa.Table:
        """The rows to put for `keys` (as `table.probes`), each with the number of its versions."""
        kept = history.kept(watermark) if self.timed else history.newest()
        order, starts = kept.spread(number)
        columns = [
            keys.column(0),
            pa.array(np.full(keys.num_rows, NEVER)),
            pa.array(np.zeros(keys.num_rows, np.bool_)),
            *keys.columns[1:],
            together(kept.rows.select([_TIME, _TIE, *self.side.values.names]).take(pa.array(order)), starts),
        ]
        return pa.Table.from_arrays(columns, schema=self.table.written)


@dataclass(frozen=True, eq=False)
class History:
    """Versions sorted by the number of their key, then from the earliest to the latest."""

    number: Rows
    times: NDArray[np.int64]
    rows: pa.Table
    """With the key columns."""

    def latest(self, number: Rows) -> Rows:
        """The latest version of each key, or -1."""
        found = np.searchsorted(self.number, number, side="right") - 1
        return self._of(found, number)

    def as_of(self, number: Rows, times: NDArray[np.int64]) -> Rows:
        """The latest version of each key that is not later than the time, or -1."""
        mine, theirs = combined(np.concatenate([number, self.number]), times, self.times)
        return self._of(np.searchsorted(theirs, mine, side="right") - 1, number)

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

    def spread(self, number: Rows) -> tuple[Rows, Rows]:
        """The rows of these keys, one key after the other, and where each begins."""
        begin = np.searchsorted(self.number, number, side="left")
        counts = np.searchsorted(self.number, number, side="right") - begin
        return expanded(begin, counts), np.cumsum(counts) - counts

    def _of(self, found: Rows, number: Rows) -> Rows:
        there = found >= 0
        there[there] = self.number[found[there]] == number[there]
        return np.where(there, found, -1)

    def _where(self, mask: NDArray[np.bool_]) -> History:
        return History(self.number[mask], self.times[mask], self.rows.filter(pa.array(mask)).combine_chunks())


def versions(name: str, keys: pa.Schema, side: Side, *, timed: bool) -> Versions:
    """Versions of the rows of a side, in a table of that name."""
    fields = pa.schema([pa.field(_TIME, pa.int64()), pa.field(_TIE, pa.int64()), *side.values])
    return Versions(StateTable(name, "value", keys, pa.schema({_VERSIONS: list_of(fields)})), side, timed)
