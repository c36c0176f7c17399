"""What `arrange` does, in plain Python and in Spark: rows to the table of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from tidegate.operators.kit.sides import TIE, TIME, Sides, arrow_schema
from tidegate.operators.operator import LEFT, RIGHT, SIDE, Input, Operator
from tidegate.pipeline.window import EventTime
from tidegate.state.table.table import HASH

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


def tie(row: Row) -> int:
    """What puts rows of equal time in a fixed order."""
    return spread(tuple(sorted(row.items())))


def given_input(ddl: str, keys: Sequence[str] = ("k",), event_time: str | None = "t") -> Input:
    """An input with columns like `k bigint, t timestamp`; Spark's own reader of such text needs a session."""
    schema = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        schema = schema.add(name, _TYPES[kind])
    return Input(schema, tuple(keys), None if event_time is None else EventTime(event_time))


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
        key = tuple(_normal(row[column], kind) for column, kind in side.key_types)
        made: dict[str, Any] = dict(
            zip(side.shuffled, (row[name] for name in side.schema.names), strict=True)
        )
        made |= {f"key_{place}": value for place, value in enumerate(key)}
        time = None if side.event_time is None else row[side.event_time.column]
        made |= {HASH: hash_of(key), SIDE: number, TIME: time, TIE: tie(row) - 2**63}
        for name in types:
            columns[name].append(made.get(name))
    return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})


def _normal(value: Any, kind: str) -> Any:
    if value is None or kind != "double":
        return value
    return float(value) + 0.0


def sent(spark: SparkSession, operator: Operator, rows: Batch, *inputs: Input) -> pa.Table:
    """What `arrange` makes of rows in Spark, as a task gets it."""
    return as_sent(operator.arrange(frame(spark, rows, *inputs), lambda frame: frame).toArrow())


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
