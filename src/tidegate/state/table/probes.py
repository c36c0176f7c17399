"""Rows that were asked for by key: `_probe` is the place of the key that a row answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.state.table.table import PROBE, StateTable

Places = NDArray[np.int64]
"""Of keys, among those that were asked for."""


def with_probe(rows: pa.Table, probe: Places) -> pa.Table:
    """Rows with the places of their keys."""
    return rows.append_column(pa.field(PROBE, pa.int64(), False), pa.array(probe, pa.int64()))


def with_probes(rows: pa.Table, places: Places) -> pa.Table:
    """Rows that were asked for by some of the keys, with the places that these have among all."""
    column = pa.array(places[rows[PROBE].to_numpy()], pa.int64())
    index = rows.schema.get_field_index(PROBE)
    return rows.set_column(index, rows.schema.field(index), column)


def by_probe(table: StateTable, found: Sequence[pa.Table]) -> pa.Table:
    """Rows in the order of the keys that were asked for; oldest first within a key."""
    filled = [rows for rows in found if rows.num_rows]
    if not filled:
        return table.answered.empty_table()
    rows = pa.concat_tables(filled).combine_chunks()
    probe = rows[PROBE].to_numpy()
    if (probe[1:] >= probe[:-1]).all():
        return rows
    order = np.argsort(probe, kind="stable" if table.kind == "buffer" else None)
    return rows.take(pa.array(order))
