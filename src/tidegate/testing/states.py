"""State in this process, for tests of operators and of functions given to `process`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import StateError
from tidegate.operators.kit.keys import numbered
from tidegate.state.log.compaction import live, merged, sorted_by_hash
from tidegate.state.table import keys
from tidegate.state.table.table import DUE, HASH, PROBE, StateTable


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
    _part: int = 0
    _count: int = 1
    _put: set[str] = field(default_factory=set)

    def get(self, table: StateTable, keys: pa.Table) -> pa.Table:
        return _found(table, self._kept(table).select(table.schema.names), keys)

    def due(self, table: StateTable, upto: int) -> pa.Table:
        rows = self.scan(table)
        return rows.filter(pc.less_equal(rows[DUE], upto))

    def scan(self, table: StateTable) -> pa.Table:
        """Columns that the table has now and had not then are null."""
        rows = self._kept(table).select(table.schema.names)
        return rows.filter(pa.array(part_of(keys.hash_column(rows[HASH]), self._count) == self._part))

    def put(self, table: StateTable, rows: pa.Table) -> None:
        if table.name in self._put:
            raise StateError(f"{table.name} was put twice in one batch; put all its rows in one call")
        if not rows.schema.equals(table.written):
            raise StateError(f"{table.name} takes {table.written}, not {rows.schema}")
        if table.kind == "value" and numbered(table, rows)[0].num_rows < rows.num_rows:
            raise StateError(f"{table.name} was given a key twice; a value table has one row per key")
        self._put.add(table.name)
        self._tables[table.name] = table
        self._staged.setdefault(table.name, []).append(rows)

    def parts(self, count: int) -> list[MemoryState]:
        """The state as `count` tasks of one batch see it, each with one slice of the hash space.

        A hash belongs to the part `hash * count >> 64`.
        """
        return [replace(self, _part=part, _count=count, _put=set()) for part in range(count)]

    def commit(self, watermark: int | None = None) -> None:
        """End the batch: what was put is there, and what is due by the watermark is gone."""
        for name, table in self._tables.items():
            staged = map(sorted_by_hash, self._staged.get(name, ()))
            self._rows[name] = live(merged(table, [self._kept(table), *staged]), watermark)
        self.abort()  # Nothing is staged any more.

    def abort(self) -> None:
        """Give the batch up: what was put is forgotten."""
        self._staged.clear()
        self._put.clear()

    def _kept(self, table: StateTable) -> pa.Table:
        """All rows, with the columns as written."""
        rows = self._rows.get(table.name, table.written.empty_table())
        columns = [
            rows[each.name] if each.name in rows.column_names else pa.nulls(rows.num_rows, each.type)
            for each in table.written
        ]
        return pa.Table.from_arrays(columns, schema=table.written)


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
