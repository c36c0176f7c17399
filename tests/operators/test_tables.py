"""What people see of the state of an operator: the user's names of the key, and times as times."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import tidegate as tg
from tidegate.operators.operator import Input
from tidegate.pipeline.keyed_step import KeyedStep
from tidegate.pipeline.window import EventTime
from tidegate.run.inspection import key_value, readable, readable_columns

SCHEMA = StructType().add("sensor", "long").add("value", "double").add("at", "timestamp")
FOUR = tg.tumbling("4 s")
COUNT = pa.schema({"n": pa.int32()})
MOMENT = pa.timestamp("us", tz="UTC")
Declare = Callable[[tg.Stream, tg.Stream], object]


def tables(declare: Declare) -> dict[str, pa.Schema]:
    """The tables of the one keyed step that is declared, with their columns as people see them."""
    p = tg.Pipeline("tables")
    source = tg.sources.Files("in", schema="sensor bigint, value double, at timestamp", event_time="at")
    declare(p.source(source), p.source(source))
    (step,) = (each for each in p.steps if isinstance(each, KeyedStep))
    inputs = [Input(SCHEMA, step.keys(side), EventTime("at")) for side in range(len(step.inputs))]
    operator = import_module(step.operator).from_step(step, *inputs)
    found = {}
    for table in operator.tables:
        keys, values = readable_columns(table)
        found[table.name] = pa.schema([*keys, *values])
        assert key_value(table, "sensor", "7").as_py() == 7
    return found


@pytest.mark.parametrize(
    ("declare", "times"),
    [
        (lambda a, b: a.key_by("sensor").aggregate(n=tg.agg.count()), {}),
        (lambda a, b: a.key_by("sensor").window(FOUR).aggregate(n=tg.agg.count()), {"window_start": MOMENT}),
        (
            lambda a, b: a.key_by("sensor").window(tg.session("4 s")).aggregate(n=tg.agg.count()),
            {"session.start": pa.list_(MOMENT), "session.end": pa.list_(MOMENT)},
        ),
        (lambda a, b: a.key_by("sensor").deduplicate(), {}),
        (lambda a, b: a.key_by("sensor").deduplicate(within="4 s"), {"accepted": MOMENT}),
        (lambda a, b: a.key_by("sensor").top_n(2, by="value"), {}),
        (
            lambda a, b: a.key_by("sensor").process(print, state_schema=COUNT, output_schema=COUNT),
            {},
        ),
        (lambda a, b: a.window_join(b, on="sensor", window=FOUR), {"window_start": MOMENT}),
        (lambda a, b: a.interval_join(b, on="sensor", after="4 s"), {"time": MOMENT}),
        (lambda a, b: a.key_by("sensor").connect(b.key_by("sensor")), {}),
    ],
)
def test_keys_have_the_users_names_and_times_are_times(
    declare: Declare, times: dict[str, pa.DataType]
) -> None:
    for schema in tables(declare).values():
        assert "sensor" in schema.names
        assert not any(name.startswith("key_") for name in schema.names)
        for name, kind in times.items():
            assert schema.field(name).type == kind


def test_the_sides_of_a_join_have_names_of_their_own() -> None:
    p = tg.Pipeline("sides")
    left, right = (
        p.source(tg.sources.Files(name, schema=f"{name} int, at timestamp", event_time="at")) for name in "ab"
    )
    left.interval_join(right, on=("a", "b"))
    (step,) = (each for each in p.steps if isinstance(each, KeyedStep))
    inputs = [
        Input(StructType().add(n, "integer").add("at", "timestamp"), (n,), EventTime("at")) for n in "ab"
    ]
    operator = import_module(step.operator).from_step(step, *inputs)
    assert [readable_columns(table)[0].names for table in operator.tables] == [["a"], ["b"]]


def test_a_key_that_is_called_like_another_column_can_still_be_told_apart() -> None:
    p = tg.Pipeline("clash")
    source = tg.sources.Files("in", schema="accepted int, at timestamp", event_time="at")
    p.source(source).key_by("accepted").deduplicate(within="4 s")
    (step,) = (each for each in p.steps if isinstance(each, KeyedStep))
    schema = StructType().add("accepted", "integer").add("at", "timestamp")
    (table,) = (
        import_module(step.operator).from_step(step, Input(schema, ("accepted",), EventTime("at"))).tables
    )
    assert readable(table.schema.empty_table(), table).column_names == ["key_0", "accepted", "expires"]
