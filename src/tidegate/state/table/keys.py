"""Keys, their hashes and key groups: whole-column operations that every part of the state layer shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint64]
Groups: TypeAlias = frozenset[int]


def group_of(hashes: Hashes, count: int) -> NDArray[np.int64]:
    """The key group of each hash: its leading bits. `count` is a power of two.

    So the key groups are slices of the hash space, and rows sorted by hash are sorted by group.
    """
    if count == 1:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - (count.bit_length() - 1))).view(np.int64)


def bounds(group: int, count: int) -> tuple[int, int]:
    """The first hash of a group, and the first beyond it (2**64 for the last one)."""
    width = 2**64 // count
    return group * width, (group + 1) * width


def slices(hashes: Hashes, groups: Groups, count: int) -> list[tuple[int, int]]:
    """Where the rows of these groups lie in hashes that are sorted, as (start, length); neighbours in one."""
    found = []
    for low, high in ranges(groups):
        start, stop = position(hashes, bounds(low, count)[0]), position(hashes, bounds(high, count)[1])
        if stop > start:
            found.append((start, stop - start))
    return found


def position(hashes: Hashes, bound: int) -> int:
    """Where the hashes begin that are not below a bound, which is at most 2**64; they are sorted."""
    return len(hashes) if bound == 2**64 else int(np.searchsorted(hashes, np.uint64(bound)))


def ranges(groups: Iterable[int]) -> list[tuple[int, int]]:
    """Groups as ranges (first, last).

    >>> ranges({1, 2, 3, 7})
    [(1, 3), (7, 7)]
    """
    found: list[tuple[int, int]] = []
    for group in sorted(groups):
        if found and found[-1][1] == group - 1:
            found[-1] = (found[-1][0], group)
        else:
            found.append((group, group))
    return found


def show_groups(groups: Iterable[int]) -> str:
    """Groups as text.

    >>> show_groups({1, 2, 3, 7})
    '1-3,7'
    """
    return ",".join(f"{low}-{high}" if low < high else str(low) for low, high in ranges(groups))


@lru_cache(64)
def parse_groups(text: str) -> Groups:
    """Groups from text.

    >>> sorted(parse_groups("1-3,7"))
    [1, 2, 3, 7]
    """
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def hash_column(column: pa.ChunkedArray | pa.Array) -> Hashes:
    """A column of hashes as numpy sees it, without a copy where it is in one piece."""
    hashes: Hashes = column.to_numpy(zero_copy_only=False).view(np.uint64)
    return hashes


def same(left: Sequence[Any], right: Sequence[Any]) -> NDArray[np.bool_]:
    """Row by row, whether two lists of equally long columns hold the same key; a null equals a null."""
    return reduce(np.logical_and, (_same_column(a, b) for a, b in zip(left, right, strict=True)))


def _same_column(a: Any, b: Any) -> NDArray[np.bool_]:
    a, b = whole(a), whole(b)
    if len(a) == 0:
        return np.empty(0, np.bool_)
    equal = pc.equal(a, b)
    if pa.types.is_floating(a.type):  # A NaN is a key like any other.
        equal = pc.or_kleene(equal, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    if a.null_count or b.null_count:
        equal = pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(a), pc.is_null(b)))
    return np.asarray(equal.to_numpy(zero_copy_only=False), np.bool_)


def distinct(hashes: Hashes, keys: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the distinct keys, in the order of their hashes.

    Returns (first, number): `first[n]` is the first row that has key n, `number[i]` the key of row i.
    Keys that share a hash are told apart by their columns.
    """
    # numpy sorts several times quicker when it need not keep the order of equal ones; so that comes after.
    order = np.argsort(hashes)
    ordered = hashes[order]
    starts = np.empty(len(order), np.bool_)
    starts[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    again = np.flatnonzero(~starts)
    if len(again):
        place = np.empty(len(order), np.int64)
        place[order] = np.cumsum(starts)
        order = np.argsort(place * len(order) + np.arange(len(order)))
        taken = [whole(column).take(order) for column in keys]
        differs = ~same([c.take(again) for c in taken], [c.take(again - 1) for c in taken])
        if differs.any():
            order = _untangled(order, starts, again[differs], keys)
            starts = _starts(order, hashes, keys)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(starts) - 1
    return order[starts], number


def whole(column: Any) -> pa.Array:
    """A column in one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    # `combine_chunks` copies even what is in one piece.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _untangled(
    order: NDArray[np.int64], starts: NDArray[np.bool_], tangled: NDArray[np.int64], keys: Sequence[Any]
) -> NDArray[np.int64]:
    """Where different keys share a hash, bring the rows of each key together. Rare, so row by row."""
    order = order.copy()
    edges = np.append(np.flatnonzero(starts), len(order))
    for cluster in np.unique(np.searchsorted(edges, tangled, side="right") - 1):
        begin, end = edges[cluster], edges[cluster + 1]
        seen: dict[tuple[str, ...], list[int]] = {}
        for row in order[begin:end].tolist():
            seen.setdefault(tuple(repr(column[row].as_py()) for column in keys), []).append(row)
        order[begin:end] = [row for name in sorted(seen) for row in seen[name]]
    return order


def _starts(order: NDArray[np.int64], hashes: Hashes, keys: Sequence[Any]) -> NDArray[np.bool_]:
    starts = np.ones(len(order), np.bool_)
    taken = [whole(column).take(order) for column in keys]
    differs = ~same([c.slice(1) for c in taken], [c.slice(0, len(c) - 1) for c in taken])
    starts[1:] = differs | (hashes[order][1:] != hashes[order][:-1])
    return starts
