"""State as an operator sees it whose rows lag behind the watermark: it lives that much earlier."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.operators.operator import State
from tidegate.state.table.table import DUE, NEVER, StateTable


class DelayedState:
    """State whose rows are due `lag` microseconds later than the operator says: state nodes know nothing of
    its lag, and drop what is due by the watermark of the batch."""

    def __init__(self, state: State, lag: int) -> None:
        self._state, self._lag = state, lag

    def get(self, table: StateTable, keys: pa.Table) -> pa.Table:
        return _shifted(self._state.get(table, keys), -self._lag)

    def due(self, table: StateTable, upto: int) -> pa.Table:
        return _shifted(self._state.due(table, upto + self._lag), -self._lag)

    def scan(self, table: StateTable) -> pa.Table:
        return _shifted(self._state.scan(table), -self._lag)

    def put(self, table: StateTable, rows: pa.Table) -> None:
        self._state.put(table, _shifted(rows, self._lag))


def _shifted(rows: pa.Table, by: int) -> pa.Table:
    """What stays for ever stays for ever."""
    due, place = rows[DUE].to_numpy(), rows.schema.get_field_index(DUE)
    moved = due + np.where(due == NEVER, 0, by)
    return rows.set_column(place, rows.schema.field(place), pa.array(moved, pa.int64()))
