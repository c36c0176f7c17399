"""State for an operator whose rows are behind the watermark: its event time is that much earlier."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.operators.operator import State
from tidegate.state.table.table import DUE, NEVER, StateTable


class DelayedState:
    """State whose rows are due `delay` microseconds later than the operator says: state nodes drop what is
    due by the watermark of the batch, and know nothing of the delay."""

    def __init__(self, state: State, delay: int) -> None:
        self._state, self._delay = state, delay

    def get(self, table: StateTable, keys: pa.Table) -> pa.Table:
        return _shifted(self._state.get(table, keys), -self._delay)

    def due(self, table: StateTable, upto: int) -> pa.Table:
        return _shifted(self._state.due(table, upto + self._delay), -self._delay)

    def scan(self, table: StateTable) -> pa.Table:
        return _shifted(self._state.scan(table), -self._delay)

    def put(self, table: StateTable, rows: pa.Table) -> None:
        self._state.put(table, _shifted(rows, self._delay))


def _shifted(rows: pa.Table, by: int) -> pa.Table:
    """What stays for ever stays for ever."""
    due, place = rows[DUE].to_numpy(), rows.schema.get_field_index(DUE)
    moved = due + np.where(due == NEVER, 0, by)
    return rows.set_column(place, rows.schema.field(place), pa.array(moved, pa.int64()))
