"""State in this process, for tests of operators and of functions given to `process`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import StateError
from tidegate.operators.kit.keys import numbered
from tidegate.state.table import keys
from tidegate.state.table.table import DUE, GONE, HASH, PROBE, StateTable


@dataclass(slots=True)
class MemoryState:
    """The state of all key groups, in memory. It is one task's `State` by itself; `parts` makes several.

    What is put is seen after `commit`, as in a batch.

    >>> table = StateTable("n", "value", pa.schema({"k": pa.int64()}), pa.schema({"n": pa.int64()}))
    >>> row = {"_hash": 7, "_due": 90, "_gone": False, "k": 1, "n": 3}
    >>> state = MemoryState()
    >>> state.put(table, pa.Table.from_pylist([row], table.written))
    >>> state.scan(table).num_rows
    0
    >>> state.commit(watermark=80)
    >>> state.scan(table)["n"].to_pylist()
    [3]
    >>> state.commit(watermark=90)
    >>> state.scan(table).num_rows
    0
    """

    _tables: dict[str, StateTable] = field(default_factory=dict)
    _rows: dict[str, pa.Table] = field(default_factory=dict)
    _staged: dict[str, list[pa.Table]] = field(default_factory=dict)

    def get(self, table: StateTable, keys: pa.Table) -> pa.Table:
        """See `State.get`."""
        return _found(table, self.scan(table), keys)

    def due(self, table: StateTable, upto: int) -> pa.Table:
        """See `State.due`."""
        rows = self.scan(table)
        return rows.filter(pc.less_equal(rows[DUE], upto))

    def scan(self, table: StateTable) -> pa.Table:
        """See `State.scan`. Columns that the table has now and had not then are null."""
        if table.name not in self._rows:
            return table.schema.empty_table()
        rows, count = self._rows[table.name], self._rows[table.name].num_rows
        columns = [
            rows[each.name] if each.name in rows.column_names else pa.nulls(count, each.type)
            for each in table.schema
        ]
        return pa.Table.from_arrays(columns, schema=table.schema)

    def put(self, table: StateTable, rows: pa.Table) -> None:
        """See `State.put`."""
        if self._staged.get(table.name):
            raise StateError(f"{table.name} was put twice in one batch; put all its rows in one call")
        self._stage(table, rows)

    def parts(self, count: int) -> list[_Part]:
        """The state as `count` tasks see it, each with one slice of the hash space.

        A hash belongs to the part `hash * count >> 64`.
        """
        return [_Part(self, index, count) for index in range(count)]

    def commit(self, watermark: int | None = None) -> None:
        """End the batch: what was put is there, and what is due by the watermark is gone."""
        for name, staged in self._staged.items():
            table, written = self._tables[name], pa.concat_tables(staged)
            rows = self.scan(table)
            if table.kind == "value":
                rows = rows.filter(pa.array(~_among(table, rows, written)))
                written = written.filter(pc.invert(written[GONE])).drop_columns([GONE])
            rows = pa.concat_tables([rows, written])
            order = np.argsort(keys.hash_column(rows[HASH]), kind="stable")
            self._rows[name] = rows.take(pa.array(order))
        self._staged.clear()
        if watermark is not None:
            for name, rows in self._rows.items():
                self._rows[name] = rows.filter(pc.greater(rows[DUE], watermark))

    def abort(self) -> None:
        """Give the batch up: what was put is forgotten."""
        self._staged.clear()

    def _stage(self, table: StateTable, rows: pa.Table) -> None:
        if not rows.schema.equals(table.written):
            raise StateError(f"{table.name} takes {table.written}, not {rows.schema}")
        if table.kind == "value" and numbered(table, rows)[0].num_rows < rows.num_rows:
            raise StateError(f"{table.name} was given a key twice; a value table has one row per key")
        self._tables[table.name] = table
        self._staged.setdefault(table.name, []).append(rows)


@dataclass(slots=True)
class _Part:
    """What one of several tasks sees."""

    state: MemoryState
    index: int
    count: int
    _put: set[str] = field(default_factory=set)

    def get(self, table: StateTable, keys: pa.Table) -> pa.Table:
        return self.state.get(table, keys)

    def due(self, table: StateTable, upto: int) -> pa.Table:
        return self._mine(self.state.due(table, upto))

    def scan(self, table: StateTable) -> pa.Table:
        return self._mine(self.state.scan(table))

    def put(self, table: StateTable, rows: pa.Table) -> None:
        if table.name in self._put:
            raise StateError(f"{table.name} was put twice in one batch; put all its rows in one call")
        self._put.add(table.name)
        self.state._stage(table, rows)

    def _mine(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(part_of(keys.hash_column(rows[HASH]), self.count) == self.index))


def part_of(hashes: keys.Hashes, count: int) -> NDArray[np.int64]:
    """Which of `count` parts each hash belongs to."""
    # 32 leading bits, so that the product stays within 64.
    return ((hashes >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def _found(table: StateTable, rows: pa.Table, probes: pa.Table) -> pa.Table:
    every, (mine, theirs) = numbered(table, probes, rows)
    probe = np.full(every.num_rows, -1, np.int64)
    probe[mine] = np.arange(probes.num_rows)
    matches = probe[theirs]
    hits = np.flatnonzero(matches >= 0)
    hits = hits[np.argsort(matches[hits], kind="stable")]
    return rows.take(pa.array(hits)).append_column(PROBE, pa.array(matches[hits]))


def _among(table: StateTable, rows: pa.Table, others: pa.Table) -> NDArray[np.bool_]:
    _, (mine, theirs) = numbered(table, rows, others)
    return np.isin(mine, theirs)
