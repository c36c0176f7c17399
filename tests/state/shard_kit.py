"""What the tests of shards share: two tables, rows for them, and a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.shard import Shard
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import NEVER, StateTable
from tidegate.storage.local import Local
from tidegate.storage.storage import Storage

COUNT = 16
ALL = frozenset(range(COUNT))
LEFT, RIGHT = frozenset(range(8)), frozenset(range(8, 16))
TABLE = StateTable("counts", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
BUFFER = StateTable("events", "buffer", pa.schema([("id", pa.int64())]), pa.schema([("v", pa.int64())]))
EMPTY = StateManifest(-1, COUNT, None, (TABLE, BUFFER))


class Make(Protocol):
    """Makes a shard, on the folder of the test unless another storage is given."""

    def __call__(self, storage: Storage | None = None, **settings: object) -> Shard: ...


class Counted(Local):
    """A folder that counts how often a blob is opened."""

    opens = 0

    def open(self, name: str) -> pa.Buffer:
        self.opens += 1
        return super().open(name)


class Fetched(Local):
    """A folder that is read like an object store, and counts the bytes that were asked for."""

    mapped = False
    fetched = 0

    def open(self, name: str) -> pa.Buffer:
        raise AssertionError("a whole run was fetched")

    def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        self.fetched += sum(length for _, length in spans)
        whole = super().open(name)
        return [whole.slice(offset, length) for offset, length in spans]


def hashes(ids: Sequence[int]) -> pa.Array:
    return pa.array(np.asarray(ids, np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def rows(
    ids: Sequence[int], n: int = 0, *, due: int = NEVER, gone: bool = False, table: StateTable = TABLE
) -> pa.Table:
    size = len(ids)
    columns = [hashes(ids), np.full(size, due), np.full(size, gone), np.asarray(ids), np.full(size, n)]
    if table.kind == "buffer":
        del columns[2]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, table.written.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.written)


def keys(ids: Sequence[int]) -> pa.Table:
    return rows(ids).select(TABLE.probes.names)


def values(found: pa.Table) -> dict[int, int]:
    return dict(zip(found["id"].to_pylist(), found[found.column_names[3]].to_pylist(), strict=True))


class Driver:
    """Takes one shard from batch to batch."""

    def __init__(self, shard: Shard, base: StateManifest = EMPTY, groups: Groups = ALL) -> None:
        self.shard = shard
        self.base = base
        self.groups = groups
        shard.begin(base, groups)

    def batch(self, writes: Mapping[str, pa.Table], watermark: int | None = None) -> StateManifest:
        number = self.base.batch_id + 1
        prepared = self.shard.prepare(number, "1", writes, watermark)
        self.shard.commit(number, watermark)
        self.base = replace(self.base, batch_id=number, closed=watermark, runs=prepared.runs)
        return self.base
