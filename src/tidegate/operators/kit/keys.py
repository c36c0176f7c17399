"""The keys of rows in a task, and rows of state by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.operators.kit.spans import RowNumbers, whole
from tidegate.operators.operator import State
from tidegate.state.table.keys import distinct, hash_column
from tidegate.state.table.table import HASH, NEVER, StateTable


def numbered(table: StateTable, *tables: pa.Table) -> tuple[pa.Table, list[RowNumbers]]:
    """Each key of these rows once, sorted by hash, as `table.probes`; for each table the numbers of its
    rows' keys there."""
    rows = pa.concat_tables([each.select(table.probes.names).cast(table.probes) for each in tables])
    first, number = distinct(hash_column(rows[HASH]), [whole(rows[name]) for name in table.keys.names])
    ends = np.cumsum([each.num_rows for each in tables])
    return rows.take(pa.array(first)).combine_chunks(), np.split(number, ends[:-1])


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
