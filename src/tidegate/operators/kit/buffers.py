"""Rows that are kept in state until event time has gone on far enough."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.operators.kit.keys import due_now, where
from tidegate.operators.kit.sides import TIME, Side
from tidegate.operators.operator import State
from tidegate.state.table.table import DUE, StateTable

AT = "time"
"""Column of a buffer: the event time of a row, in microseconds."""


def time_buffer(name: str, keys: pa.Schema, side: Side) -> StateTable:
    """The table of a side's rows with their event times."""
    return StateTable(name, "buffer", keys, pa.schema([pa.field(AT, pa.int64()), *side.values]))


def with_due(rows: pa.Table, delay: int) -> pa.Table:
    """Rows for such a table, due when the watermark is more than `delay` past their event time: as long as
    it is not, another row of that time may come."""
    micros = rows[TIME].to_numpy()
    return rows.append_column(DUE, pa.array(micros + (delay + 1))).append_column(AT, pa.array(micros))


def buffer(
    side: Side, table: StateTable, rows: pa.Table, state: State, time: Time
) -> tuple[pa.Table, NDArray[np.bool_], int]:
    """The rows of this batch that are on time, as the table has them; which of them are due now, so that only
    the others are put; and how many came too late."""
    due = rows[DUE].to_numpy()
    on_time = np.ones(len(due), np.bool_) if time.closed is None else due > time.closed
    kept, due = where(side.rows(rows, table.schema), on_time), due[on_time]
    ready = np.zeros(len(due), np.bool_) if time.watermark is None else due <= time.watermark
    if not ready.all():
        state.put(table, where(kept, ~ready))
    return kept, ready, int(len(on_time) - len(due))


def release(side: Side, table: StateTable, rows: pa.Table, state: State, time: Time) -> tuple[pa.Table, int]:
    """The rows that are due now, of those in state and of this batch; and how many came too late.

    The others of this batch are put.
    """
    kept, ready, late = buffer(side, table, rows, state, time)
    found = pa.concat_tables([due_now(table, state, time), where(kept, ready)])
    return found.combine_chunks(), late
