"""Writes of the open batch, as tasks bring them, until `prepare` takes them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.errors import StateError


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task wrote to one table."""

    rows: pa.Table
    stats: Mapping[str, int] = field(default_factory=dict)
    nonce: int = 0


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that was staged, the same whatever the order it came in."""

    writes: Mapping[str, pa.Table]
    tables: Mapping[str, Mapping[int, int]]
    """Rows by table and partition."""
    stats: Mapping[str, int]
    nonces: Mapping[str, Mapping[int, int]]
    """Also by table and partition."""


class Staging:
    """By table and partition; of two writes for the same place the last one counts."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._parts: dict[tuple[str, int], Staged] = {}
        self.bytes = 0

    def put(self, table: str, partition: int, staged: Staged) -> None:
        place = table, partition
        with self._lock:
            before = self._parts.get(place)
            size = self.bytes + staged.rows.nbytes - (before.rows.nbytes if before else 0)
            if size > self._limit:
                raise StateError(
                    f"{size:,} bytes staged for one batch are more than the {self._limit:,} that a node "
                    "takes; use smaller batches or more nodes"
                )
            self._parts[place] = staged
            self.bytes = size

    def gathered(self) -> Gathered:
        """Partitions in ascending order within each table; nothing is copied."""
        with self._lock:
            parts = [(place, self._parts[place]) for place in sorted(self._parts)]
        pieces: dict[str, list[pa.Table]] = {}
        tables: dict[str, dict[int, int]] = {}
        stats: dict[str, int] = {}
        nonces: dict[str, dict[int, int]] = {}
        for (table, partition), staged in parts:
            pieces.setdefault(table, []).append(staged.rows)
            tables.setdefault(table, {})[partition] = staged.rows.num_rows
            nonces.setdefault(table, {})[partition] = staged.nonce
            for name, count in staged.stats.items():
                stats[name] = stats.get(name, 0) + count
        writes = {table: pa.concat_tables(found) for table, found in pieces.items()}
        return Gathered(writes, tables, stats, nonces)

    def clear(self) -> None:
        with self._lock:
            self._parts.clear()
            self.bytes = 0
