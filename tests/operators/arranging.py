"""What `arrange` and the engine do, in plain Python: rows to tables of a task, batches with watermarks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from tidegate.engine.watermark import Watermark
from tidegate.operators.event_time import EventTime
from tidegate.operators.input import Input
from tidegate.operators.operator import LEFT, RIGHT, SIDE, Operator, Time
from tidegate.operators.sides import TIE, TIME, Sides, arrow_schema
from tidegate.state.keys import hash_column
from tidegate.state.table import HASH
from tidegate.testing.states import MemoryState, part_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES: dict[str, T.DataType] = {
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "boolean": T.BooleanType(),
    "timestamp": T.TimestampType(),
    "array<int>": T.ArrayType(T.IntegerType()),
    "map<string,int>": T.MapType(T.StringType(), T.IntegerType()),
}

Row = dict[str, Any]
Hash = Callable[[Hashable], int]
Batch = list[tuple[int, Row]]
"""Rows with the number of their side."""


def spread(key: Hashable) -> int:
    """A hash as good as any."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")


def colliding(key: Hashable) -> int:
    """A hash with two values only."""
    return spread(key) % 2 << 63


def given_input(ddl: str, keys: Sequence[str] = ("k",), event_time: str | None = "t") -> Input:
    """An input with columns like `k bigint, t timestamp`; Spark's own reader of such text needs a session."""
    schema = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        schema = schema.add(name, _TYPES[kind])
    return Input(schema, tuple(keys), None if event_time is None else EventTime(event_time))


KEYS: dict[str, tuple[str, Sequence[Any]]] = {
    "int": ("bigint", [1, 2, 3, None]),
    "string": ("string", ["a", "b", "", None]),
    "binary": ("binary", [b"", b"\x00", b"\x00\x00", None]),
    "double": ("double", [0.0, 1.5, math.nan, None]),
}
"""Types of keys, and keys."""

keyed = st.sampled_from(
    [("int",), ("string",), ("binary",), ("double",), ("int", "string"), ("string", "binary")]
)
hashes = st.sampled_from([spread, colliding])


def key_columns(kinds: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Key columns as DDL text, and their names."""
    names = tuple(f"k{number}" for number in range(len(kinds)))
    return ", ".join(f"{name} {KEYS[kind][0]}" for name, kind in zip(names, kinds, strict=True)), names


def rows_of(
    kinds: Sequence[str], *, most: int = 25, latest: int = 60, sides: int = 2
) -> st.SearchStrategy[Batch]:
    """Rows with columns k0.., t (microseconds) and v; values may be null."""
    row = st.fixed_dictionaries(
        {f"k{number}": st.sampled_from(KEYS[kind][1]) for number, kind in enumerate(kinds)}
        | {"t": st.integers(0, latest), "v": st.none() | st.integers(0, 3)}
    )
    return st.lists(st.tuples(st.integers(0, sides - 1), row), max_size=most)


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


def arranged(sides: Sides, rows: Batch, hash_of: Hash) -> pa.Table:
    """Rows as `Sides.frame` makes them, and the hash of their keys."""
    columns: dict[str, list[Any]] = {name: [] for name in (HASH, SIDE, TIME, TIE)}
    types: dict[str, pa.DataType] = {HASH: pa.uint64(), SIDE: pa.int32(), TIME: pa.int64(), TIE: pa.int64()}
    for side in sides.each:
        for place, field in zip(side.shuffled, side.schema, strict=True):
            types[place] = field.type
    types |= {field.name: field.type for field in sides.keys}
    columns |= {name: [] for name in types}
    for number, row in rows:
        side = sides.each[number]
        key = tuple(_normal(row[column], kind) for column, kind in sides.spark_keys[number])
        made: dict[str, Any] = dict(
            zip(side.shuffled, (row[name] for name in side.schema.names), strict=True)
        )
        made |= {f"key_{place}": value for place, value in enumerate(key)}
        time = None if side.event_time is None else row[side.event_time.column]
        tie = spread(tuple(sorted(row.items()))) - 2**63
        made |= {HASH: hash_of(key), SIDE: number, TIME: time, TIE: tie}
        for name in types:
            columns[name].append(made.get(name))
    return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})


def _normal(value: Any, kind: str) -> Any:
    if value is None or kind != "double":
        return value
    return float(value) + 0.0


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


def frame(spark: SparkSession, rows: Batch, *inputs: Input) -> DataFrame:
    """Rows as `arrange` gets them."""
    schemas = [arrow_schema(each.schema) for each in inputs]
    if len(inputs) == 1:
        return spark.createDataFrame(pa.Table.from_pylist([row for _, row in rows], schemas[0]))
    schema = pa.schema(
        [(SIDE, pa.int32()), *((name, pa.struct(s)) for name, s in zip((LEFT, RIGHT), schemas, strict=True))]
    )
    listed = [{SIDE: side, (LEFT, RIGHT)[side]: row} for side, row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(listed, schema))


def as_sent(arranged: pa.Table) -> pa.Table:
    """What `arrange` made, as a task gets it."""
    hashes = pa.array(arranged[HASH].to_numpy().view(np.uint64))
    return arranged.set_column(arranged.column_names.index(HASH), HASH, hashes)
