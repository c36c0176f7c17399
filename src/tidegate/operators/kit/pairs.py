"""Which rows of two sides belong together, found by whole-column operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate.operators.kit.spans import Numbers, RowNumbers


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
