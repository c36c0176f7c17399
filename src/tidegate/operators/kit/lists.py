"""Several rows in one value of a state table: a list of structs, by columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.operators.kit.spans import whole


def list_of(rows: pa.Schema) -> pa.DataType:
    """The type of a list of such rows."""
    return pa.list_(pa.struct(list(rows)))


def unlisted(lists: pa.ChunkedArray) -> tuple[pa.Table, NDArray[np.int64]]:
    """All rows of all lists, and the list that each is from."""
    column = whole(lists)
    rows = column.flatten()
    table = pa.Table.from_arrays(rows.flatten(), schema=pa.schema(list(rows.type)))
    counts = column.value_lengths().to_numpy(zero_copy_only=False)
    return table, np.repeat(np.arange(len(column)), counts)


def listed(rows: pa.Table, starts: NDArray[np.int64]) -> pa.Array:
    """Rows as lists that begin at `starts`; none is empty."""
    fields = list(rows.schema)
    structs = pa.StructArray.from_arrays([whole(column) for column in rows.columns], fields=fields)
    offsets = np.append(starts, rows.num_rows).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=pa.list_(pa.struct(fields)))
