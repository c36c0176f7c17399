from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.arranging import Batch, Hash, Row, arranged, given_input, sent, spread, tie
from tests.operators.playing import Run, orders, play, readable
from tests.operators.strategies import hashes, input_of, keyed, runs
from tidegate.batch.time import Time
from tidegate.errors import PipelineError, Where
from tidegate.operators import top_n
from tidegate.operators.operator import Input
from tidegate.pipeline import keyed_step as steps
from tidegate.testing.states import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def operator(given: Input, n: int = 2, by: str = "v") -> top_n.TopN:
    return top_n.from_step(steps.TopN("best", Where("p.py", 1), (), n, by), given)


def without_nulls(rows: Batch, by: str = "v") -> Batch:
    return [(side, row) for side, row in rows if row[by] is not None]


def latest(output: list[Row], names: tuple[str, ...]) -> dict[str, dict[int, Row]]:
    """What a sink in update mode shows: each key with its rows by rank."""
    shown: dict[str, dict[int, Row]] = {}
    for row in output:
        ranks = shown.setdefault(repr([row[name] for name in names]), {})
        ranks[row["rank"]] = {name: value for name, value in row.items() if name != "rank"}
    return shown


@settings(max_examples=120)
@given(st.data(), keyed, hashes, st.integers(1, 4))
def test_the_best_rows_of_each_key_are_shown(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash, n: int
) -> None:
    given = input_of(kinds)
    best, names = operator(given, n), given.keys
    run = data.draw(runs(kinds, grace=0, sides=1))
    tables = [arranged(best.sides, without_nulls(batch), hash_of) for batch in run.batches]
    output, *_ = play(best, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    expected: dict[str, list[Row]] = {}
    for batch in run.batches:
        for _, row in without_nulls(batch):
            ordered = {name: row[name] for name in best.output.names[:-1]}
            expected.setdefault(repr([row[name] for name in names]), []).append(ordered)
    for key, rows in expected.items():
        rows.sort(key=lambda row: (-row["v"], tie(row)))
        assert repr(latest(output, names)[key]) == repr(dict(enumerate(rows[:n], 1)))
    assert latest(output, names).keys() == expected.keys()


@settings(max_examples=30)
@given(runs(("int",), sides=1), hashes)
def test_the_order_of_rows_changes_nothing(run: Run, hash_of: Hash) -> None:
    best = operator(input_of(("int",)))
    tables = [arranged(best.sides, without_nulls(batch), hash_of) for batch in run.batches]
    assert len(orders(best, tables, run, sorted_output=True)) == 1


def shown(given: Input, *batches: list[tuple[Any, ...]], n: int = 2) -> list[list[tuple[Any, ...]]]:
    best, state, out = operator(given, n), MemoryState(), []
    for batch in batches:
        rows = [(0, dict(zip(given.schema.names, row, strict=True))) for row in batch]
        result = best.apply(arranged(best.sides, rows, spread), state, Time(None, None))
        out.append([tuple(row.values()) for row in result.rows.to_pylist()])
        state.commit()
    return out


def test_a_key_leaves_only_when_its_best_rows_changed() -> None:
    given = given_input("k string, v bigint", event_time=None)
    batches = [("a", 1), ("b", 5), ("a", 3)], [("a", 0), ("b", 4)], [("a", 2)], [("a", 2)]
    first, second, third, fourth = shown(given, *map(list, batches))
    assert sorted(first) == [("a", 1, 2), ("a", 3, 1), ("b", 5, 1)]
    assert second == [("b", 5, 1), ("b", 4, 2)]
    assert third == [("a", 3, 1), ("a", 2, 2)]
    assert fourth == []


@pytest.mark.parametrize(
    ("kind", "values", "order"),
    [
        ("double", [1.0, math.nan, math.inf], [math.nan, math.inf, 1.0]),
        ("string", ["a", "", "b"], ["b", "a", ""]),
        ("binary", [b"\xff", b"\x00", b"a"], [b"\xff", b"a", b"\x00"]),
        ("boolean", [False, True], [True, False]),
    ],
)
def test_values_of_any_type_with_an_order_are_ranked(kind: str, values: list[Any], order: list[Any]) -> None:
    given = given_input(f"k string, v {kind}", event_time=None)
    (rows,) = shown(given, [("a", value) for value in values], n=3)
    assert str([row[1] for row in rows]) == str(order)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (given_input("k int, t timestamp"), "by='v': there is no column 'v' among"),
        (given_input("v int, t timestamp", ["v"]), "is the key"),
        (given_input("k int, v int, rank int"), "'rank' already"),
        (given_input("k int, v array<int>"), "no order"),
    ],
)
def test_what_cannot_be_ranked_is_refused(given: Input, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        operator(given)


def test_it_is_pickled() -> None:
    best = operator(given_input("k int, v int"))
    assert pickle.loads(pickle.dumps(best)) == best


@pytest.mark.spark
def test_spark_arranges_rows_as_the_task_expects(spark: SparkSession) -> None:
    given = given_input("k int, v double, m map<string,int>", event_time=None)
    best = operator(given)
    batch: Batch = [
        (0, {"k": 1, "v": 0.0, "m": None}),
        (0, {"k": 1, "v": None, "m": None}),
        (0, {"k": 1, "v": 2.0, "m": [("a", 1)]}),
    ]
    found = sent(spark, best, batch, given)
    result = best.apply(found, MemoryState(), Time(None, None))
    assert [tuple(row.values()) for row in readable(result.rows)] == [
        (1, 2.0, [("a", 1)], 1),
        (1, 0.0, None, 2),
    ]
