"""The keys of rows in a task, which rows belong together by them, and rows of state by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.operators.kit.spans import Numbers, RowNumbers
from tidegate.operators.operator import State
from tidegate.state.table.keys import distinct, hash_column, whole
from tidegate.state.table.table import HASH, NEVER, StateTable


def numbered(table: StateTable, *tables: pa.Table) -> tuple[pa.Table, list[RowNumbers]]:
    """Each key of these rows once, sorted by hash, as `table.probes`; for each table the numbers of its
    rows' keys there."""
    rows = pa.concat_tables([each.select(table.probes.names).cast(table.probes) for each in tables])
    first, number = distinct(hash_column(rows[HASH]), [whole(rows[name]) for name in table.keys.names])
    ends = np.cumsum([each.num_rows for each in tables])
    return rows.take(pa.array(first)).combine_chunks(), np.split(number, ends[:-1])


def pairs(low: Numbers, high: Numbers, right: Numbers) -> tuple[RowNumbers, RowNumbers]:
    """All (left row, right row) where the number of the right row is from `low` to `high` of the left one.

    They are in the order of the left rows, then of the numbers, then of the right rows.
    """
    order = np.argsort(right, kind="stable")
    begin = np.searchsorted(right[order], low, side="left")
    counts = np.searchsorted(right[order], high, side="right") - begin
    return np.repeat(np.arange(len(low)), counts), order[expanded(begin, counts)]


def sorted_by_key(keys: int, number: RowNumbers, times: RowNumbers, ties: RowNumbers) -> RowNumbers:
    """The order of rows by the number of their key, of which there are `keys`, then by time, then tie."""
    if keys < len(number):
        return np.lexsort((ties, times, number))
    order = np.empty_like(number)  # Each row has its own key, so there is nothing to sort.
    order[number] = np.arange(keys)
    return order


def combined(number: RowNumbers, *times: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Key numbers and times as single numbers, ordered by number, then time. Each time is as long as `number`
    of its own side, so `number` holds them all, one after the other."""
    _, rank = np.unique(np.concatenate(times), return_inverse=True)
    both = (number << np.int64(32)) | rank.astype(np.int64)
    return tuple(np.split(both, np.cumsum([len(time) for time in times])[:-1]))


def expanded(begin: RowNumbers, counts: RowNumbers) -> RowNumbers:
    """The ranges begin[i] .. begin[i] + counts[i], one after the other.

    >>> expanded(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist()
    [5, 6, 7, 8, 9]
    """
    ends = np.cumsum(counts)
    rows: RowNumbers = np.repeat(begin - (ends - counts), counts)
    return rows + np.arange(len(rows), dtype=np.int64)


def where(rows: pa.Table, mask: NDArray[np.bool_]) -> pa.Table:
    """The rows that the mask marks, without a copy where it marks all."""
    return rows if mask.all() else rows.filter(pa.array(mask))


def due_now(table: StateTable, state: State, time: Time) -> pa.Table:
    """The rows of state that the watermark of this batch has reached."""
    if time.watermark is None or time.watermark == time.closed:
        return table.schema.empty_table()
    return state.due(table, time.watermark)


def written(
    table: StateTable, keys: pa.Table, values: Sequence[Any], *, due: Any = NEVER, gone: bool = False
) -> pa.Table:
    """Rows to put: `keys` as `table.probes`, and their values. `due` is one for all rows or one for each."""
    count = keys.num_rows
    own = [keys[HASH], pa.array(np.broadcast_to(np.asarray(due, np.int64), count))]
    if table.kind == "value":
        own.append(pa.array(np.full(count, gone)))
    return pa.Table.from_arrays([*own, *keys.columns[1:], *values], schema=table.written)
