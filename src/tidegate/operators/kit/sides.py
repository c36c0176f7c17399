"""The columns of an operator's inputs: in the shuffle, in state tables and in the output.

A user's columns may have any names. On the way to a task they are called `key_0`, `key_1`.. (the key, in the
form that equal keys share) and `c0`, `c1`.. (the rest), in a state table `key_0`.. and `row.<name>`. A column
that can be read from the key is not carried twice, and two inputs share the columns `c0`.. where types allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DoubleType, FloatType, StructField, StructType

from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import common_type, normal
from tidegate.operators.operator import LEFT, RIGHT, SIDE, Input
from tidegate.pipeline.window import EventTime
from tidegate.state.table.keys import whole

TIME, TIE = "_time", "_tie"
"""Event time in microseconds; a number that puts rows of equal time in a fixed order."""
_ROW = "row."


@dataclass(frozen=True)
class Side:
    """The columns of one input, and where they are on their way."""

    schema: pa.Schema
    shuffled: tuple[str, ...]
    key_types: tuple[tuple[str, str], ...]
    """(key column, type that it is cast to); none on a side without key."""
    event_time: EventTime | None

    @property
    def key(self) -> tuple[str, ...]:
        """The user's names of the key columns."""
        return tuple(name for name, _ in self.key_types)

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

    def sent(self, prefix: str) -> dict[str, Column]:
        """What is shuffled of its rows, whose names begin with `prefix`."""
        time = F.lit(None).cast("bigint") if self.event_time is None else self.event_time.micros(prefix)
        sent = {TIME: time}
        for number, (key, kind) in enumerate(self.key_types):
            sent[f"key_{number}"] = F.col(f"{prefix}`{key}`").cast(kind)
        for name, place in zip(self.schema.names, self.shuffled, strict=True):
            sent.setdefault(place, F.col(f"{prefix}`{name}`"))
        return sent

    def rows(self, arranged: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows from the shuffle with the columns of a state table."""
        places = dict(zip(self.kept, self.shuffled, strict=True))
        columns = [arranged[places.get(field.name, field.name)].cast(field.type) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def original(self, arranged: pa.Table, chosen: pa.Array) -> pa.Table:
        """The user's columns of chosen rows from the shuffle."""
        columns = [
            whole(arranged[place].cast(field.type)).take(chosen)
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
    each: tuple[Side, ...]

    def frame(self, rows: DataFrame, *, tie: bool = False, timed: bool = False) -> DataFrame:
        """The rows of a batch as SIDE, TIME, key_0.., c0.. and, if asked for, TIE; with `timed`, only those
        that have an event time."""
        prefixes = ("",) if len(self.each) == 1 else (f"{LEFT}.", f"{RIGHT}.")
        sent = [side.sent(prefix) for side, prefix in zip(self.each, prefixes, strict=True)]
        names = dict.fromkeys((TIME, *self.keys.names, *chain(*sent)))
        chosen = [_chosen([columns.get(name, F.lit(None)) for columns in sent]).alias(name) for name in names]
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


def sides(*inputs: Input, exact: bool = True) -> Sides:
    """How these inputs travel. A key that both sides call the same stays behind on the right one.

    `exact`: a key that is a float arrives as it came, not in the form that equal keys share.
    """
    keyed = [each for each in inputs if each.keys]
    counts = {len(each.keys) for each in keyed}
    if len(counts) > 1:
        counted = " and ".join(map(str, sorted(counts)))
        raise PipelineError(f"the keys of both streams need equally many columns, but they have {counted}")
    kinds = [
        _common([(key, each.schema[key].dataType) for each, key in zip(keyed, keys, strict=True)])
        for keys in zip(*(each.keys for each in keyed), strict=True)
    ]
    slots: list[str] = []
    left, *others = inputs
    each = [_side(left, kinds, slots, (), exact=exact)]
    for right in others:
        alike = [key for key, other in zip(left.keys, right.keys, strict=False) if key == other]
        each.append(_side(right, kinds, slots, alike, exact=exact))
    keys = StructType([StructField(f"key_{number}", kind) for number, kind in enumerate(kinds)])
    return Sides(arrow_schema(keys), tuple(each))


def _side(
    given: Input, kinds: Sequence[DataType], slots: list[str], dropped: Sequence[str], *, exact: bool
) -> Side:
    """Find a place for each column; `slots` are the types of `c0`.., and grow as needed."""
    free = list(range(len(slots)))
    fields, places = [], []
    for field in given.schema.toNullable():
        if field.name in dropped:
            continue
        fields.append(field)
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
    key_types = tuple((key, kind.simpleString()) for key, kind in zip(given.keys, kinds, strict=False))
    return Side(arrow_schema(StructType(fields)), tuple(places), key_types, given.event_time)


def joined(left: Side, right: Side, *before: pa.Field) -> pa.Schema:
    """The columns of pairs: `before`, the left ones, the right ones; `_right` ends a name that clashes."""
    fields = [*before, *left.schema]
    taken = [field.name for field in fields]
    for name in taken[: len(before)]:
        if name in left.schema.names:
            raise PipelineError(
                f"the left stream has a column {name!r}, which this step adds; rename it first"
            )
    for field in right.schema:
        name = f"{field.name}_right" if field.name in taken else field.name
        if name in taken or (name != field.name and name in right.schema.names):
            raise PipelineError(
                f"both streams have a column {field.name!r}, and {name!r} is taken, too; rename one first"
            )
        fields.append(field.with_name(name))
        taken.append(name)
    return pa.schema(fields)


def arrow_schema(columns: StructType) -> pa.Schema:
    """Columns as Arrow has them: all may be null, timestamps are in UTC."""
    nullable = columns.toNullable()
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
