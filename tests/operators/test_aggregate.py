"""Running aggregates against a plain computation over all rows."""

from __future__ import annotations

import math
import pickle
import statistics
from collections.abc import Callable, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests.operators.aggregating import Run, assert_close, crowded, operator, plain, rank, replays
from tests.operators.arranging import Row, spread
from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.pipeline import agg
from tidegate.pipeline.window import session, tumbling

_NO_TIME = Time(None, None)
_KEYS: dict[str, tuple[T.DataType, st.SearchStrategy[Any]]] = {
    "integer": (T.LongType(), st.integers(0, 3)),
    "text": (T.StringType(), st.sampled_from(["", "a", "ä", "b"])),
    "bytes": (T.BinaryType(), st.sampled_from([b"", b"\0", b"\0\0"])),
    "real": (T.DoubleType(), st.sampled_from([0.0, -0.0, 1.5, math.nan])),
    "switch": (T.BooleanType(), st.booleans()),
}
_COLUMNS: dict[str, T.DataType] = {
    **{name: kind for name, (kind, _) in _KEYS.items()},
    "at": T.TimestampType(),
    "i": T.IntegerType(),
    "d": T.DoubleType(),
    "s": T.StringType(),
    "c": T.DecimalType(10, 2),
    "b": T.BinaryType(),
}
_AGGREGATES = {
    "n": agg.count(),
    "i_sum": agg.sum("i"),
    "d_sum": agg.sum("d"),
    "c_sum": agg.sum("c"),
    "i_min": agg.min("i"),
    "d_min": agg.min("d"),
    "d_max": agg.max("d"),
    "s_max": agg.max("s"),
    "b_min": agg.min("b"),
    "c_max": agg.max("c"),
    "at_max": agg.max("at"),
    "i_mean": agg.mean("i"),
    "i_var": agg.variance("i"),
    "d_first": agg.first("d"),
    "s_last": agg.last("s"),
}


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


_ROW = st.fixed_dictionaries(
    {
        **{name: _or_null(values) for name, (_, values) in _KEYS.items()},
        "at": _or_null(st.integers(-3, 3)),
        "i": _or_null(st.integers(-100, 100)),
        "d": _or_null(st.sampled_from([0.0, -0.0, 0.25, -8.0, 1e9, math.nan, math.inf])),
        "s": _or_null(st.text("aäz", max_size=2)),
        "c": _or_null(st.decimals(-999, 999, places=2)),
        "b": _or_null(st.binary(max_size=2)),
    }
)
_BATCHES = st.lists(st.lists(st.tuples(_ROW, st.integers(0, 2)), max_size=8), min_size=1, max_size=4)


@settings(max_examples=50)
@given(
    batches=_BATCHES,
    keys=st.lists(st.sampled_from(sorted(_KEYS)), min_size=1, max_size=2, unique=True),
    tasks=st.integers(1, 3),
    hash=st.sampled_from([spread, crowded]),
)
def test_equals_a_plain_computation_whatever_the_boundaries(
    batches: list[list[tuple[Row, int]]], keys: list[str], tasks: int, hash: Callable[..., int]
) -> None:
    run = Run(operator(_COLUMNS, keys, _AGGREGATES), tasks, hash)
    latest: dict[str, Row] = {}
    for batch in batches:
        left = run.batch(batch, _NO_TIME)
        latest |= {_name(row, keys): row for row in left}
        assert {_name(row, keys) for row in left} == {_name(row, keys) for row, _ in batch}
    expected: dict[str, list[Row]] = {}
    for batch in batches:
        for row, _ in batch:
            expected.setdefault(_name(row, keys), []).append(row)
    assert latest.keys() == expected.keys()
    for name, rows in expected.items():
        assert_close(latest[name], computed(rows))


def _name(row: Row, keys: Sequence[str]) -> str:
    return repr([plain(row[key]) for key in keys])


def computed(rows: list[Row]) -> Row:
    """The aggregates of rows of one key, in plain Python."""

    def values(column: str) -> list[Any]:
        return [row[column] for row in rows if row[column] is not None]

    def total(column: str) -> Any:
        return sum(values(column)) if values(column) else None

    timed = [row for row in rows if row["at"] is not None]
    first = min(timed, key=lambda row: (row["at"], rank(row["d"])), default={"d": None})
    last = max(timed, key=lambda row: (row["at"], rank(row["s"])), default={"s": None})
    integers = values("i")
    return {
        "n": len(rows),
        "i_sum": total("i"),
        "d_sum": total("d"),
        "c_sum": total("c"),
        "i_min": min(integers, default=None),
        "d_min": min(values("d"), key=rank, default=None),
        "d_max": max(values("d"), key=rank, default=None),
        "s_max": max(values("s"), key=str.encode, default=None),
        "b_min": min(values("b"), default=None),
        "c_max": max(values("c"), default=None),
        "i_mean": statistics.fmean(integers) if integers else None,
        "i_var": float(statistics.variance(integers)) if len(integers) > 1 else None,
        "d_first": first["d"],
        "s_last": last["s"],
    }


@settings(max_examples=40)
@given(batch=st.lists(st.tuples(_ROW, st.integers(0, 2)), max_size=12), random=st.randoms())
def test_a_replay_in_another_order_gives_the_same_bytes(batch: list[tuple[Row, int]], random: Random) -> None:
    op = operator(_COLUMNS, ["integer"], _AGGREGATES)
    one, other = replays(op, batch, _NO_TIME, random)
    assert one == other


@pytest.mark.parametrize("parts", [(0, 0, 0), (0, 1, 2)])
def test_of_events_at_one_time_a_null_is_least_and_a_nan_greatest(parts: tuple[int, ...]) -> None:
    columns = {"k": T.LongType(), "v": T.DoubleType(), "at": T.TimestampType()}
    run = Run(operator(columns, ["k"], {"first": agg.first("v"), "last": agg.last("v")}))
    values = [2.0, math.nan, None]
    batch = [({"k": 1, "v": v, "at": 0}, part) for v, part in zip(values, parts, strict=True)]
    [left] = run.batch(batch, _NO_TIME)
    assert left["first"] is None
    assert math.isnan(left["last"])


def test_an_aggregate_that_is_added_later_begins_with_nothing() -> None:
    columns = {"k": T.LongType(), "v": T.LongType()}
    run = Run(operator(columns, ["k"], {"n": agg.count()}, event_time=None))
    run.batch([({"k": 1, "v": 5}, 0)], _NO_TIME)
    grown = {
        "n": agg.count(),
        "total": agg.sum("v"),
        "low": agg.min("v"),
        "mean": agg.mean("v"),
        "var": agg.variance("v"),
        "kinds": agg.approx_distinct("v"),
        "half": agg.quantile("v", 0.5),
    }
    run.operator = operator(columns, ["k"], grown, event_time=None)
    assert run.batch([({"k": 1, "v": 7}, 0)], _NO_TIME) == [
        {"k": 1, "n": 2, "total": 7, "low": 7, "mean": 7.0, "var": None, "kinds": 1, "half": 7.0}
    ]


def test_state_columns_say_what_they_hold() -> None:
    op = operator({"k": T.LongType(), "v": T.LongType()}, ["k"], {"total": agg.sum("v"), "m": agg.mean("v")})
    assert op.tables[0].name == "totals"
    assert op.tables[0].values.names == ["total.sum", "m.count", "m.sum"]
    assert all(field.nullable for field in op.tables[0].values)


def test_output_is_sorted_by_hash() -> None:
    run = Run(operator({"k": T.LongType()}, ["k"], {"n": agg.count()}, event_time=None))
    left = run.batch([({"k": k}, 0) for k in range(20)], _NO_TIME)
    assert [row["k"] for row in left] == sorted(range(20), key=lambda k: spread((k,)))


def test_a_task_without_rows_leaves_the_state_alone() -> None:
    run = Run(operator({"k": T.LongType()}, ["k"], {"n": agg.count()}, event_time=None))
    assert run.batch([], _NO_TIME) == []


def test_an_operator_can_be_sent_to_a_task() -> None:
    op = operator(_COLUMNS, ["integer"], _AGGREGATES)
    assert pickle.loads(pickle.dumps(op)).output.equals(op.output)


@pytest.mark.parametrize(
    ("kind", "value"), [(T.LongType(), 2**62), (T.DecimalType(38, 0), Decimal(6 * 10**37))]
)
def test_a_sum_beyond_its_type_is_an_error(kind: T.DataType, value: Any) -> None:
    run = Run(operator({"k": T.LongType(), "v": kind}, ["k"], {"total": agg.sum("v")}, event_time=None))
    run.batch([({"k": 1, "v": value}, 0)], _NO_TIME)
    with pytest.raises(PipelineError, match=r"total = sum\(v\) overflows"):
        run.batch([({"k": 1, "v": value}, 0), ({"k": 2, "v": value}, 0)], _NO_TIME)


_FLAWS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown column": ({"total": agg.sum("nope")}, "no column 'nope' among k, s, l, at"),
    "sum of text": ({"total": agg.sum("s")}, r"sum\(s\) needs numbers, but 's' is a string"),
    "quantile of text": ({"half": agg.quantile("s", 0.5)}, "needs numbers"),
    "order of lists": ({"top": agg.max("l")}, "'l' is a array<int>; select the relevant part"),
    "name of a key": ({"K": agg.count()}, "has the same name as another"),
    "own name": ({"_n": agg.count()}, "start with '_'"),
}


@pytest.mark.parametrize(("aggregates", "problem"), _FLAWS.values(), ids=_FLAWS)
def test_a_step_that_does_not_fit_its_input_is_refused(aggregates: dict[str, Any], problem: str) -> None:
    columns = {
        "k": T.LongType(),
        "s": T.StringType(),
        "l": T.ArrayType(T.IntegerType()),
        "at": T.TimestampType(),
    }
    with pytest.raises(PipelineError, match=problem):
        operator(columns, ["k"], aggregates)


def test_keys_are_checked() -> None:
    columns = {"l": T.ArrayType(T.IntegerType()), "_hash": T.LongType(), "n.count": T.LongType()}
    for key, problem in [
        ("l", "cannot be a key"),
        ("_hash", "uses that name itself"),
        ("k", "no column 'k'"),
    ]:
        with pytest.raises(PipelineError, match=problem):
            operator(columns, [key], {"n": agg.count()})
    with pytest.raises(PipelineError, match="same name as a column of this step"):
        operator(columns, ["n.count"], {"n": agg.count()})


def test_what_needs_an_event_time_is_refused_without_one() -> None:
    columns = {"k": T.LongType(), "v": T.LongType()}
    for aggregates, window in [({"v": agg.first("v")}, None), ({"n": agg.count()}, tumbling("1 s"))]:
        with pytest.raises(PipelineError, match="event_time="):
            operator(columns, ["k"], aggregates, window, event_time=None)


def test_names_of_the_window_are_taken() -> None:
    columns = {"k": T.LongType(), "at": T.TimestampType()}
    with pytest.raises(PipelineError, match="another output column"):
        operator(columns, ["k"], {"window_end": agg.count()}, session("1 s"))
    with pytest.raises(PipelineError, match="column of this step"):
        operator(
            {"window_start": T.LongType(), **columns}, ["window_start"], {"n": agg.count()}, tumbling("1 s")
        )
