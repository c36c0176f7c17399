"""What the engine does, in plain Python: rows in batches with watermarks, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from tests.operators.arranging import Batch, Row
from tidegate.batch.time import Time
from tidegate.batch.watermark import Watermark
from tidegate.operators.kit.sides import Sides
from tidegate.operators.operator import Operator
from tidegate.state.table.keys import hash_column
from tidegate.state.table.table import HASH
from tidegate.testing.states import MemoryState, part_of


@dataclass(frozen=True)
class Run:
    """Rows cut into batches, each with its time; after the last one, event time is complete."""

    batches: list[Batch]
    times: list[Time]


def cut(rows: Batch, cuts: Iterable[int], grace: int, *, sides: int = 2, on_time: bool = False) -> Run:
    """Cut rows into batches, with the watermark that the engine would have. With `on_time`, rows that came
    behind the watermark are left out."""
    edges = [0, *sorted({cut % (len(rows) + 1) for cut in cuts}), len(rows)]
    mark = Watermark({str(side): grace / 1e6 for side in range(sides)}, {})
    batches, times, closed = [], [], None
    for begin, end in pairwise(edges):
        times.append(Time(closed, mark.micros))
        batch = [
            (side, row)
            for side, row in rows[begin:end]
            if not on_time or closed is None or row["t"] >= closed
        ]
        batches.append(batch)
        closed = mark.micros
        newest: dict[str, int] = {}
        for side, row in batch:
            newest[str(side)] = max(row["t"], newest.get(str(side), row["t"]))
        mark = mark.advance(newest)
    return Run([*batches, []], [*times, Time(closed, 10**12)])


def play(
    operator: Operator, tables: Sequence[pa.Table], times: Sequence[Time], *, tasks: int = 1, seed: int = 0
) -> tuple[list[Row], int, MemoryState]:
    """All output rows, how many were late, and the state that is left. `seed` shuffles rows."""
    state, output, late = MemoryState(), list[Row](), 0
    shuffled = np.random.default_rng(seed)
    for table, time in zip(tables, times, strict=True):
        owner = part_of(hash_column(table[HASH]), tasks)
        for index, part in enumerate(state.parts(tasks)):
            mine = np.flatnonzero(owner == index)
            if seed:
                shuffled.shuffle(mine)
            result = operator.apply(table.take(pa.array(mine)), part, time)
            assert result.rows.schema.equals(operator.output)
            output += readable(result.rows)
            late += result.late
        state.commit(time.watermark)
    return output, late, state


def readable(table: pa.Table) -> list[Row]:
    """Rows with timestamps as microseconds."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(index, field.name, table[field.name].cast(pa.int64()))
    return [dict(row) for row in table.to_pylist()]


def bag(rows: Iterable[Row]) -> list[str]:
    """Rows in any order, to compare."""
    return sorted(repr(tuple(row.items())) for row in rows)


def kept(operator: Operator, state: MemoryState) -> list[list[str]]:
    """What is in each table of an operator, to compare."""
    return [bag(readable(state.scan(table))) for table in operator.tables]


def orders(
    operator: Operator, tables: Sequence[pa.Table], run: Run, *, tasks: int = 1, sorted_output: bool = False
) -> set[str]:
    """What a run leaves and keeps with the rows of each batch in three orders; with `sorted_output`, rows
    have to leave in the same order, too."""
    seen = [play(operator, tables, run.times, tasks=tasks, seed=seed) for seed in (0, 1, 2)]
    return {
        repr((output if sorted_output else bag(output), late, kept(operator, state)))
        for output, late, state in seen
    }


def key_of(row: Row) -> str:
    """The key of a row with columns k0.., to compare."""
    return repr([value for name, value in sorted(row.items()) if name.startswith("k")])


class Joining(Protocol):
    """An operator with two sides."""

    @property
    def sides(self) -> Sides: ...

    @property
    def output(self) -> pa.Schema: ...


def pair(joining: Joining, left: Row, right: Row | None, *before: int) -> Row:
    """Two rows as one, with nulls where there is no right one; `before` comes before both."""
    first, second = (side.schema.names for side in joining.sides.each)
    values = [*before, *(left[name] for name in first), *(right[name] if right else None for name in second)]
    return dict(zip(joining.output.names, values, strict=True))
