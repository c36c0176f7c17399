"""Which rows of two sides belong together, found by whole-column operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.operators.kit.spans import whole
from tidegate.state.table.keys import Hashes, distinct, same

Rows: TypeAlias = NDArray[np.int64]


def pairs(
    left_hashes: Hashes, left_keys: Sequence[Any], right_hashes: Hashes, right_keys: Sequence[Any]
) -> tuple[Rows, Rows]:
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


def numbered(*sides: tuple[Hashes, Sequence[Any]]) -> tuple[Rows, ...]:
    """The number of each row's key, over (hashes, keys) of several sides."""
    hashes = np.concatenate([hashes for hashes, _ in sides])
    columns = [
        pa.concat_arrays([whole(each) for each in key]) for key in zip(*(k for _, k in sides), strict=True)
    ]
    _, number = distinct(hashes, columns)
    return tuple(np.split(number, np.cumsum([len(hashes) for hashes, _ in sides])[:-1]))


def sorted_by_key(first: Rows, number: Rows, times: NDArray[np.int64], ties: NDArray[np.int64]) -> Rows:
    """The order of rows by (first, number) of `distinct`, then by time, then tie."""
    # Where each row has its own key there is nothing left to sort.
    return first if len(first) == len(number) else np.lexsort((ties, times, number))


def combined(number: Rows, *times: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Key numbers and times as single numbers, ordered by number, then time. Each time is as long as `number`
    of its own side, so `number` holds them all, one after the other."""
    _, rank = np.unique(np.concatenate(times), return_inverse=True)
    both = (number << np.int64(32)) | rank.astype(np.int64)
    return tuple(np.split(both, np.cumsum([len(time) for time in times])[:-1]))


def expanded(begin: Rows, counts: Rows) -> Rows:
    """The ranges begin[i] .. begin[i] + counts[i], one after the other.

    >>> expanded(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist()
    [5, 6, 7, 8, 9]
    """
    ends = np.cumsum(counts)
    rows: Rows = np.repeat(begin - (ends - counts), counts)
    return rows + np.arange(len(rows), dtype=np.int64)


def _one_key_per_hash(ordered: Hashes, order: Rows, keys: Sequence[Any]) -> bool:
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    return bool(_equal(keys, order[again], keys, order[again + 1]).all())


def _equal(left: Sequence[Any], left_rows: Rows, right: Sequence[Any], right_rows: Rows) -> NDArray[np.bool_]:
    return same(
        [whole(key).take(pa.array(left_rows)) for key in left],
        [whole(key).take(pa.array(right_rows)) for key in right],
    )
