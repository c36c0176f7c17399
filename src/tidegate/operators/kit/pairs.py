"""Which rows of two sides belong together, found by whole-column operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.operators.kit.spans import RowNumbers, whole
from tidegate.state.table.keys import Hashes, same


def pairs(
    left_hashes: Hashes, left_keys: Sequence[Any], right_hashes: Hashes, right_keys: Sequence[Any]
) -> tuple[RowNumbers, RowNumbers]:
    """All (left row, right row) with equal keys, in the order of their hashes, then of the rows.

    A null equals a null: who does not want that leaves such rows out.
    """
    left, right = np.argsort(left_hashes, kind="stable"), np.argsort(right_hashes, kind="stable")
    left_sorted, right_sorted = left_hashes[left], right_hashes[right]
    begin = np.searchsorted(right_sorted, left_sorted, side="left")
    counts = np.searchsorted(right_sorted, left_sorted, side="right") - begin
    met = counts > 0
    chosen = right[expanded(begin, counts)]
    rows = np.repeat(left, counts)
    # One key per hash on each side, and the same one: then there is no need to look at every pair.
    if not (
        _one_key_per_hash(left_sorted, left, left_keys)
        and _one_key_per_hash(right_sorted, right, right_keys)
        and _equal(left_keys, left[met], right_keys, right[begin[met]]).all()
    ):
        equal = _equal(left_keys, rows, right_keys, chosen)
        return rows[equal], chosen[equal]
    return rows, chosen


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


def _one_key_per_hash(ordered: Hashes, order: RowNumbers, keys: Sequence[Any]) -> bool:
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    return bool(_equal(keys, order[again], keys, order[again + 1]).all())


def _equal(
    left: Sequence[Any], left_rows: RowNumbers, right: Sequence[Any], right_rows: RowNumbers
) -> NDArray[np.bool_]:
    return same(
        [whole(key).take(pa.array(left_rows)) for key in left],
        [whole(key).take(pa.array(right_rows)) for key in right],
    )
