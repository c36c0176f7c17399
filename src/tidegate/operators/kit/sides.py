"""The columns of an operator's inputs: in the shuffle, in state tables and in the output.

A user's columns may have any names. On the way to a task they are called `key_0`, `key_1`.. (the key, in the
form that equal keys share) and `c0`, `c1`.. (the rest), in a state table `key_0`.. and `row.<name>`. A column
that can be read from the key is not carried twice, and two inputs share the columns `c0`.. where types allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DoubleType, FloatType, StructField, StructType

from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import normal
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.key_types import common_type
from tidegate.operators.kit.spans import whole
from tidegate.operators.operator import LEFT, RIGHT, SIDE
from tidegate.pipeline.event_time import EventTime

TIME, TIE = "_time", "_tie"
"""Event time in microseconds; a number that puts rows of equal time in a fixed order."""
_ROW = "row."


@dataclass(frozen=True)
class Side:
    """The columns of one input, and where they are on their way."""

    schema: pa.Schema
    shuffled: tuple[str, ...]
    event_time: EventTime | None

    @property
    def kept(self) -> tuple[str, ...]:
        """Where each column is in a state table."""
        places = zip(self.schema.names, self.shuffled, strict=True)
        return tuple(place if place.startswith("key_") else _ROW + name for name, place in places)

    @property
    def values(self) -> pa.Schema:
        """The value columns of a state table that keeps whole rows."""
        places = zip(self.schema, self.kept, strict=True)
        return pa.schema([field.with_name(place) for field, place in places if place.startswith(_ROW)])

    def rows(self, arranged: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows from the shuffle with the columns of a state table."""
        places = dict(zip(self.kept, self.shuffled, strict=True))
        columns = [_conforming(arranged[places.get(field.name, field.name)], field.type) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def original(self, arranged: pa.Table, chosen: pa.Array) -> pa.Table:
        """The user's columns of chosen rows from the shuffle."""
        columns = [
            whole(_conforming(arranged[place], field.type)).take(chosen)
            for place, field in zip(self.shuffled, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def take(self, rows: pa.Table, chosen: pa.Array) -> list[pa.Array]:
        """The user's columns of rows as kept, where a null in `chosen` is a row of nulls."""
        return [whole(rows[place]).take(chosen) for place in self.kept]


@dataclass(frozen=True)
class Sides:
    """One or two inputs as they are shuffled."""

    keys: pa.Schema
    """`key_0`, `key_1`.."""
    spark_keys: tuple[tuple[tuple[str, str], ...], ...]
    """For each side (column, type that it is cast to); none on a side without key."""
    carried: int
    """How many columns `c0`.. there are."""
    each: tuple[Side, ...]

    def frame(self, rows: DataFrame, *, tie: bool = False, timed: bool = False) -> DataFrame:
        """The rows of a batch as SIDE, TIME, key_0.., c0.. and, if asked for, TIE; with `timed`, only those
        that have an event time."""
        prefixes = ("",) if len(self.each) == 1 else (f"{LEFT}.", f"{RIGHT}.")
        choices: dict[str, list[Column]] = {TIME: []}
        for side, prefix in zip(self.each, prefixes, strict=True):
            none = F.lit(None).cast("bigint")
            choices[TIME].append(none if side.event_time is None else side.event_time.micros(prefix))
        for number, key in enumerate(self.keys.names):
            choices[key] = [
                F.col(f"{prefix}`{keys[number][0]}`").cast(keys[number][1]) if keys else F.lit(None)
                for prefix, keys in zip(prefixes, self.spark_keys, strict=True)
            ]
        for number in range(self.carried):
            place = f"c{number}"
            choices[place] = [
                F.col(f"{prefix}`{side.schema.names[side.shuffled.index(place)]}`")
                if place in side.shuffled
                else F.lit(None)
                for side, prefix in zip(self.each, prefixes, strict=True)
            ]
        chosen = [_chosen(columns).alias(name) for name, columns in choices.items()]
        frame = rows.select(*([SIDE] if len(self.each) == 2 else []), *chosen)
        if tie:
            frame = frame.withColumn(TIE, _tie(frame))
        others = [name for name in frame.columns if name not in self.keys.names]
        frame = frame.select(*others, *(normal(frame, key) for key in self.keys.names))
        return frame.where(F.col(TIME).isNotNull()) if timed else frame

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows of each of two inputs."""
        side = rows[SIDE].to_numpy()
        left, right = (rows.filter(pa.array(side == number)).combine_chunks() for number in (0, 1))
        return left, right


def sides(*inputs: Input, without: Iterable[str] = (), exact: bool = True) -> Sides:
    """How these inputs travel; the columns `without` of the last one stay behind.

    `exact`: a key that is a float arrives as it came, not in the form that equal keys share.
    """
    keyed = [each for each in inputs if each.keys]
    counts = {len(each.keys) for each in keyed}
    if len(counts) > 1:
        raise PipelineError(f"the streams have keys of {' and '.join(map(str, sorted(counts)))} columns")
    kinds = [
        _common([(key, each.schema[key].dataType) for each, key in zip(keyed, keys, strict=True)])
        for keys in zip(*(each.keys for each in keyed), strict=True)
    ]
    slots: list[str] = []
    each = []
    for number, given in enumerate(inputs):
        dropped = set(without) if number == len(inputs) - 1 else set()
        each.append(_side(given, kinds, slots, dropped, exact=exact))
    keys = arrow_schema([(f"key_{number}", kind) for number, kind in enumerate(kinds)])
    casts = tuple(
        tuple((key, kind.simpleString()) for key, kind in zip(given.keys, kinds, strict=False))
        for given in inputs
    )
    return Sides(keys, casts, len(slots), tuple(each))


def named_alike(left: Input, right: Input) -> list[str]:
    """The keys that both sides call the same: in a pair one of them is enough."""
    return [key for key, other in zip(left.keys, right.keys, strict=False) if key == other]


def _side(
    given: Input, kinds: Sequence[DataType], slots: list[str], dropped: set[str], *, exact: bool
) -> Side:
    """Find a place for each column; `slots` are the types of `c0`.., and grow as needed."""
    free = list(range(len(slots)))
    fields, places = [], []
    for field in given.schema.toNullable():
        if field.name in dropped:
            continue
        fields.append((field.name, field.dataType))
        if field.name in given.keys:
            number = given.keys.index(field.name)
            floating = isinstance(field.dataType, FloatType | DoubleType)
            if kinds[number] == field.dataType and not (exact and floating):
                places.append(f"key_{number}")
                continue
        kind = field.dataType.json()
        slot = next((slot for slot in free if slots[slot] == kind), None)
        if slot is None:
            slot = len(slots)
            slots.append(kind)
        else:
            free.remove(slot)
        places.append(f"c{slot}")
    return Side(arrow_schema(fields), tuple(places), given.event_time)


def joined(left: Side, right: Side, *, before: pa.Schema | None = None) -> pa.Schema:
    """The columns of pairs: `before`, the left ones, the right ones; `_right` ends a name that clashes."""
    fields = [*(before or ()), *left.schema]
    taken = [field.name for field in fields]
    for name in [each.name for each in before or ()]:
        if taken.count(name) > 1:
            raise PipelineError(
                f"the left stream has a column {name!r}, which this step adds; rename it first"
            )
    for field in right.schema:
        name = f"{field.name}_right" if field.name in taken else field.name
        if name in taken or (name != field.name and name in right.schema.names):
            raise PipelineError(
                f"both streams have a column {field.name!r} and there is a {name!r} already; rename one first"
            )
        fields.append(field.with_name(name))
        taken.append(name)
    return pa.schema(fields)


def arrow_schema(fields: StructType | Sequence[tuple[str, DataType]]) -> pa.Schema:
    """Columns as Arrow has them: all may be null, timestamps are in UTC."""
    if not isinstance(fields, StructType):
        fields = StructType([StructField(name, kind) for name, kind in fields])
    nullable = fields.toNullable()
    assert isinstance(nullable, StructType)
    return to_arrow_schema(nullable, timezone="UTC")


def _common(keys: Sequence[tuple[str, DataType]]) -> DataType:
    (left, kind), *others = keys
    for right, other in others:
        found = common_type(kind, other)
        if found is None:
            raise PipelineError(
                f"{left!r} is a {kind.simpleString()} and {right!r} a {other.simpleString()}, "
                "which are never equal; cast one of them first"
            )
        kind = found
    return kind


def _chosen(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    return F.when(F.col(SIDE) == 0, columns[0]).otherwise(columns[1])


def _tie(frame: DataFrame) -> Column:
    """A number for the whole row, equal in equal rows."""
    columns = []
    for field in frame.schema:
        value = F.col(field.name)
        # Spark has no hash of a map.
        columns.append(value.cast("string") if '"map"' in field.dataType.json() else value)
    return F.xxhash64(*columns, *(F.col(name).isNull() for name in frame.columns))


def _conforming(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else column.cast(kind)
