"""Rows that wait in state until event time has gone on far enough."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.operators.kit.sides import TIME, Side
from tidegate.operators.operator import State
from tidegate.state.table.table import DUE, StateTable

WAITED = "time"
"""Event time of a row that waits, in microseconds."""


def waiting_room(name: str, keys: pa.Schema, side: Side) -> StateTable:
    """The table in which rows of a side wait."""
    return StateTable(name, "buffer", keys, pa.schema([pa.field(WAITED, pa.int64()), *side.values]))


def come_in(
    side: Side, table: StateTable, rows: pa.Table, reach: int, time: Time
) -> tuple[pa.Table, NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows of this batch as the table has them, due when the watermark is more than `reach` past their
    event time: as long as it is not, another row of that time may come. Also which are on time and which
    are due now."""
    micros = rows[TIME].to_numpy()
    due = micros + (reach + 1)
    rows = rows.append_column(DUE, pa.array(due)).append_column(WAITED, pa.array(micros))
    none = np.zeros(len(due), np.bool_)
    on_time = ~none if time.closed is None else due > time.closed
    ready = none if time.watermark is None else on_time & (due <= time.watermark)
    return side.rows(rows, table.schema), on_time, ready


def called(
    side: Side, table: StateTable, rows: pa.Table, reach: int, state: State, time: Time
) -> tuple[pa.Table, int]:
    """The rows that are due now, of those that waited and of this batch; and how many came too late.

    The others of this batch are put to wait.
    """
    kept, on_time, ready = come_in(side, table, rows, reach, time)
    staying = on_time & ~ready
    if staying.any():
        state.put(table, kept.filter(pa.array(staying)))
    found = kept.filter(pa.array(ready))
    if time.watermark is not None and time.watermark != time.closed:
        found = pa.concat_tables([state.due(table, time.watermark), found])
    return found.combine_chunks(), int(len(on_time) - on_time.sum())
