"""Rows that are sorted so that those of one key lie together: whole-column reductions over them, and each
key's rows as one value, a list of structs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.state.table.keys import whole

Numbers: TypeAlias = NDArray[Any]
RowNumbers: TypeAlias = NDArray[np.int64]
"""Numbers of rows, or one number per row such as that of its key."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Where each key's rows begin; a span has at least one row, and each row is in one."""

    starts: NDArray[np.int64]
    rows: int

    @classmethod
    def of(cls, number: NDArray[np.int64]) -> Spans:
        """From the number of each row's key, ascending.

        >>> Spans.of(np.array([0, 0, 3, 5, 5])).starts.tolist()
        [0, 2, 3]
        """
        first = np.ones(len(number), np.bool_)
        np.not_equal(number[1:], number[:-1], out=first[1:])
        return cls(np.flatnonzero(first), len(number))

    @property
    def single(self) -> bool:
        """Whether no key has more than one row."""
        return len(self.starts) == self.rows

    @property
    def ids(self) -> NDArray[np.int64]:
        """The span of each row."""
        return np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=self.rows))

    def reduce(self, function: np.ufunc, values: Numbers) -> Numbers:
        """A numpy function such as `np.add` over the values of each span."""
        if self.single:
            return values
        with np.errstate(all="ignore"):  # As in Spark: inf - inf is NaN, and no reason for a warning.
            return np.asarray(function.reduceat(values, self.starts))

    def fold(self, function: str, column: pa.Array) -> pa.Array:
        """One of Arrow's functions such as `min` over the values of each span that are not null."""
        if self.single:
            return column
        table = pa.table({"span": self.ids, "value": column})
        folded = table.group_by("span", use_threads=False).aggregate([("value", function)])
        return folded[f"value_{function}"].combine_chunks()


def ascending(*by: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order of rows by the first key, then by the next; no certain one where they agree in all.

    As `np.lexsort`, but several times as fast, since the keys mostly fit into one number together.

    >>> ascending(np.array([1, 0, 1]), np.array([5, 7, 4])).tolist()
    [1, 2, 0]
    """
    if not len(by[0]):
        return np.empty(0, np.int64)
    joined, width = np.zeros(len(by[0]), np.int64), 1
    for key in reversed(by):
        low, high = int(key.min()), int(key.max())
        if width * (high - low + 1) >= 2**63:
            return np.lexsort(by[::-1])
        joined += (key - low) * width
        width *= high - low + 1
    return np.argsort(joined)


def valid(column: pa.Array) -> NDArray[np.bool_]:
    """Which values are not null."""
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def numbers(column: pa.Array, null: float = 0) -> Numbers:
    """The values of a primitive type as numbers in the same order, with `null` in place of a null."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(null, column.type))
    return np.asarray(column.to_numpy(zero_copy_only=False))


def column(values: Numbers, kind: pa.DataType, known: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as a column of a primitive type, null where they are not known."""
    if known is not None and known.all():
        known = None
    made = pa.array(values, mask=None if known is None else ~known)
    if pa.types.is_temporal(kind):
        return made.view(kind)
    return made.cast(kind)


def listed(rows: pa.Table, starts: RowNumbers) -> pa.Array:
    """Rows as lists that begin at `starts`; none is empty."""
    offsets = np.append(starts, rows.num_rows).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), whole(rows.to_struct_array()))


def unlisted(lists: pa.ChunkedArray) -> tuple[pa.Table, RowNumbers]:
    """All rows of all lists, and the list that each is from."""
    column = whole(lists)
    return pa.Table.from_struct_array(column.flatten()), pc.list_parent_indices(column).to_numpy()
