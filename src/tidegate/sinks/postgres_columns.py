"""Spark's column types as PostgreSQL has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import SinkError
from tidegate.sinks import json_form

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Spark's type -> the type of a column that we create, then others of `pg_type` that hold it without loss.
_TYPES: dict[str, tuple[str, ...]] = {
    "tinyint": ("int2", "int4", "int8", "numeric"),
    "smallint": ("int2", "int4", "int8", "numeric"),
    "int": ("int4", "int8", "numeric"),
    "bigint": ("int8", "numeric"),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "decimal": ("numeric",),
    "string": ("text", "varchar", "bpchar", "citext", "uuid", "json", "jsonb"),
    "char": ("text", "varchar", "bpchar", "citext"),
    "varchar": ("text", "varchar", "bpchar", "citext"),
    "boolean": ("bool",),
    "binary": ("bytea",),
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
    "array": ("jsonb", "json"),
    "map": ("jsonb", "json"),
    "struct": ("jsonb", "json"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """A column that a table has."""

    name: str
    type: str
    required: bool
    """Whether a row without a value for it is refused."""


def create_types(rows: DataFrame) -> list[tuple[str, str]]:
    """Name and PostgreSQL type of each column of a table made for these rows."""
    from pyspark.sql.types import DecimalType

    columns = []
    for field in rows.schema:
        kind = _accepted(field.name, field.dataType)[0]
        if isinstance(field.dataType, DecimalType):
            kind = f"numeric({field.dataType.precision},{field.dataType.scale})"
        columns.append((field.name, kind))
    return columns


def check(rows: DataFrame, table: str, found: Sequence[Found]) -> None:
    """Raise when the table cannot hold the rows, with all that does not fit."""
    columns = {column.name: column for column in found}
    problems = []
    for field in rows.schema:
        accepted, column = _accepted(field.name, field.dataType), columns.get(field.name)
        if column is None:
            problems.append(f"column {field.name} ({accepted[0]}) is missing")
        elif column.type not in accepted:
            problems.append(f"column {field.name} is {column.type} but must be {' or '.join(accepted)}")
    given = {field.name for field in rows.schema}
    problems += [
        f"column {c.name} is required, but the rows do not have it"
        for c in found
        if c.required and c.name not in given
    ]
    if problems:
        raise SinkError(
            f"table {table} does not fit the rows: {'; '.join(problems)}. Alter the table, or select and "
            "cast the columns before the sink"
        )


def as_text(rows: DataFrame) -> DataFrame:
    """The same rows, with what CSV cannot say turned into text that PostgreSQL reads.

    Columns are known by their place: Spark cannot hand on a name that holds a dot.
    """
    from pyspark.sql import functions as f

    places = [f"c{index}" for index in range(len(rows.columns))]
    return rows.toDF(*places).select(
        *(
            _text(f.col(place), field.dataType).alias(place)
            for place, field in zip(places, rows.schema, strict=True)
        )
    )


def _text(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    if isinstance(kind, BinaryType):
        return f.concat(f.lit("\\x"), f.hex(column))
    if isinstance(kind, (ArrayType, MapType, StructType)):
        return f.to_json(column, json_form.VALUES)
    return column


def _accepted(name: str, kind: DataType) -> tuple[str, ...]:
    word = kind.simpleString().partition("(")[0].partition("<")[0]
    if word not in _TYPES:
        raise SinkError(f"column {name} is {kind.simpleString()}, which PostgreSQL has no type for; cast it")
    return _TYPES[word]
