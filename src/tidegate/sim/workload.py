"""What goes into a simulated pipeline, and what must come out: one keyed step with a sum and a buffer.

A row has a key, a value and an event time. The step adds values up by key; a sum that four divides is
forgotten, so that tombstones come about. It also keeps each row for a while, and hands it on when the
watermark says that its time is over. `applied` does that with state as tasks have it; `Model` says, with
plain dicts and none of the machinery, what must come of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.state.table.table import NEVER, PROBE, StateTable
from tidegate.state.task.state import TaskState

SECOND = 1_000_000
GRACE = 5.0
_KEPT = 20 * SECOND
"""How long the buffer keeps a row."""
_FORGOTTEN = 4
KEYS = 22
_HASHES = 18
"""Fewer than keys, so that some share one."""

_KEY = pa.schema([pa.field("key", pa.int64(), False)])
SUMS = StateTable("sum", "value", _KEY, pa.schema([pa.field("total", pa.int64())]))
ROWS = StateTable("sum.rows", "buffer", _KEY, pa.schema([pa.field("value", pa.int64())]))
TABLES = (SUMS, ROWS)


class Row(NamedTuple):
    key: int
    value: int
    at: int
    """Microseconds."""


Output: TypeAlias = list[tuple[Any, ...]]


def hashed(key: int) -> int:
    return (key % _HASHES * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64


class Input:
    """The rows of a source, in their order, the same for the same seed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.rows: list[Row] = []

    def more(self, count: int) -> int:
        """Have so many more rows; how many there are then."""
        for _ in range(count):
            at = 10 + len(self.rows) + self._rng.randint(-9, 5)
            self.rows.append(Row(self._rng.randrange(KEYS), self._rng.randint(1, 9), at * SECOND))
        return len(self.rows)

    def one_of_each_key(self) -> int:
        at = (10 + len(self.rows)) * SECOND
        self.rows += [Row(key, 1, at) for key in range(KEYS)]
        return len(self.rows)


def applied(rows: Sequence[Row], state: TaskState, time: Time) -> tuple[Output, int]:
    """The step, in one task: its output, and how many rows were late."""
    keys = sorted({row.key for row in rows})
    hashes = list(map(hashed, keys))
    totals, waiting = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    if keys:
        probes = pa.table([hashes, keys], SUMS.probes)
        found = state.get(SUMS, probes)
        totals |= {keys[probe]: total for probe, total in zip(*_lists(found, PROBE, "total"), strict=True)}
        for probe in _lists(state.get(ROWS, probes), PROBE)[0]:
            waiting[keys[probe]] += 1
    due: Output = []
    if time.watermark is not None:
        over = state.due(ROWS, time.watermark)
        due = [("over", key, value) for key, value in zip(*_lists(over, "key", "value"), strict=True)]
    for row in rows:
        totals[row.key] += row.value
    gone = [totals[key] % _FORGOTTEN == 0 for key in keys]
    columns = [hashes, [NEVER] * len(keys), gone, keys, [totals[key] for key in keys]]
    state.put(SUMS, pa.table(columns, SUMS.written))
    kept = [row for row in rows if time.watermark is None or row.at + _KEPT > time.watermark]
    columns = [
        [hashed(row.key) for row in kept],
        [row.at + _KEPT for row in kept],
        [row.key for row in kept],
        [row.value for row in kept],
    ]
    state.put(ROWS, pa.table(columns, ROWS.written))
    return [*(("sum", key, totals[key], waiting[key]) for key in keys), *due], len(rows) - len(kept)


def _lists(rows: pa.Table, *names: str) -> list[list[Any]]:
    return [rows[name].to_pylist() for name in names]


@dataclass
class Model:
    """What must be there after a batch, and what it must have put out."""

    sums: dict[int, int] = field(default_factory=dict)
    kept: tuple[tuple[int, int, int], ...] = ()
    """Key, value and when it is due."""
    newest: int | None = None
    watermark: int | None = None
    output: Output = field(default_factory=list)

    def after(self, rows: Iterable[Row]) -> Model:
        rows = list(rows)
        watermark = self.newest - round(GRACE * SECOND) if self.newest is not None else None
        sums = dict(self.sums)
        output: Output = []
        for key in sorted({row.key for row in rows}):
            total = sums.pop(key, 0) + sum(row.value for row in rows if row.key == key)
            output.append(("sum", key, total, sum(1 for kept in self.kept if kept[0] == key)))
            if total % _FORGOTTEN:
                sums[key] = total
        kept = self.kept + tuple((row.key, row.value, row.at + _KEPT) for row in rows)
        if watermark is not None:
            output += [("over", key, value) for key, value, due in self.kept if due <= watermark]
            kept = tuple(each for each in kept if each[2] > watermark)
        newest = max(
            (*(row.at for row in rows), *(() if self.newest is None else (self.newest,))), default=None
        )
        return Model(sums, kept, newest, watermark, sorted(output))

    @property
    def state(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
        return sorted(self.sums.items()), sorted(self.kept)
