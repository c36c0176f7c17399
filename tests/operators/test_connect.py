from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.arranging import Batch, Hash, Row, arranged, given_input, sent, spread, tie
from tests.operators.playing import Run, bag, kept, key_of, orders, pair, play, readable
from tests.operators.strategies import hashes, input_of, keyed, runs
from tidegate.batch.time import Time
from tidegate.errors import PipelineError, Where
from tidegate.operators import connect
from tidegate.operators.operator import Input
from tidegate.pipeline import keyed_step as steps
from tidegate.testing.states import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def operator(left: Input, right: Input) -> connect.Connect:
    return connect.from_step(steps.Connect("latest", Where("p.py", 1), ()), left, right)


@settings(max_examples=150)
@given(st.data(), keyed, hashes)
def test_with_event_time_a_row_meets_what_was_the_latest_at_its_time(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash
) -> None:
    latest = operator(input_of(kinds), input_of(kinds))
    run = data.draw(runs(kinds, grace=20, latest=30, on_time=True))
    tables = [arranged(latest.sides, batch, hash_of) for batch in run.batches]
    output, late, state = play(latest, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    every = [row for batch in run.batches for row in batch]
    expected = []
    for left in (row for side, row in every if side == 0):
        met = [row for side, row in every if side and row["t"] <= left["t"] and key_of(row) == key_of(left)]
        newest = max(met, key=lambda row: (row["t"], tie(row)), default=None)
        expected.append(pair(latest, left, newest))
    assert bag(output) == bag(expected)
    assert late == 0
    assert kept(latest, state)[0] == []


@settings(max_examples=100)
@given(st.data(), keyed, hashes, st.sampled_from([None, "t"]))
def test_without_event_time_a_row_meets_the_latest_at_once(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash, time: str | None
) -> None:
    latest = operator(input_of(kinds, None), input_of(kinds, time))
    run = data.draw(runs(kinds, grace=0))
    tables = [arranged(latest.sides, batch, hash_of) for batch in run.batches]
    output, *_ = play(latest, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    known: dict[str, tuple[Any, Row]] = {}
    expected = []
    for number, batch in enumerate(run.batches):
        for row in (row for side, row in batch if side):
            rank = (row["t"] if time else number, tie(row))
            if key_of(row) not in known or known[key_of(row)][0] < rank:
                known[key_of(row)] = rank, row
        for row in (row for side, row in batch if not side):
            expected.append(pair(latest, row, known.get(key_of(row), (None, None))[1]))
    assert bag(output) == bag(expected)


@settings(max_examples=40)
@given(runs(("int",), ended=False), hashes, st.sampled_from([None, "t"]))
def test_the_order_of_rows_changes_nothing(run: Run, hash_of: Hash, time: str | None) -> None:
    latest = operator(input_of(("int",), time), input_of(("int",), time))
    tables = [arranged(latest.sides, batch, hash_of) for batch in run.batches]
    assert len(orders(latest, tables, run)) == 1


GIVEN = given_input("k string, t timestamp")


def rows(latest: connect.Connect, *sided: tuple[int, int]) -> Any:
    return arranged(latest.sides, [(side, {"k": "a", "t": at}) for side, at in sided], spread)


def test_only_versions_that_may_be_asked_for_are_kept() -> None:
    latest = operator(GIVEN, GIVEN)
    tables = [rows(latest, (1, 1), (1, 4), (1, 5), (1, 6), (1, 9)), rows(latest, (1, 7))]
    *_, state = play(latest, tables, [Time(None, None), Time(None, 5)])
    (versions,) = state.scan(latest.tables[1])["versions"].to_pylist()
    assert [version["time"] for version in versions] == [5, 6, 7, 9]


def test_a_left_row_that_would_have_left_is_late() -> None:
    latest = operator(GIVEN, GIVEN)
    output, late, _ = play(latest, [rows(latest, (0, 9), (0, 10), (1, 3))], [Time(10, 20)])
    assert late == 1
    assert [(row["t"], row["t_right"]) for row in output] == [(10, 3)]


def test_keys_of_different_names_and_types_meet() -> None:
    left, right = given_input("id bigint", ["id"], None), given_input("value double, w int", ["value"], None)
    latest = operator(left, right)
    batch: Batch = [(0, {"id": 2}), (1, {"value": 2.0, "w": 1}), (1, {"value": math.nan, "w": 2})]
    output, *_ = play(latest, [arranged(latest.sides, batch, spread)], [Time(None, None)])
    assert output == [{"id": 2, "value": 2.0, "w": 1}]


def test_the_right_key_comes_from_the_right_row() -> None:
    latest = operator(given_input("a string", ["a"], None), given_input("b string, w int", ["b"], None))
    batch: Batch = [(0, {"a": "x"}), (0, {"a": "y"}), (1, {"b": "x", "w": 1})]
    output, *_ = play(latest, [arranged(latest.sides, batch, spread)], [Time(None, None)])
    assert bag(output) == bag([{"a": "x", "b": "x", "w": 1}, {"a": "y", "b": None, "w": None}])


def test_the_right_stream_may_consist_of_its_key() -> None:
    given = given_input("k string", event_time=None)
    latest = operator(given, given)
    batch: Batch = [(0, {"k": "x"}), (1, {"k": "x"}), (1, {"k": "y"})]
    output, _, state = play(latest, [arranged(latest.sides, batch, spread)], [Time(None, None)])
    assert output == [{"k": "x"}]
    assert state.scan(latest.tables[0]).num_rows == 2


def test_keys_of_different_length_are_refused() -> None:
    with pytest.raises(PipelineError, match="equally many columns, but they have 1 and 2"):
        operator(GIVEN, given_input("k string, t timestamp", ["k", "t"]))


def test_it_is_pickled() -> None:
    latest = operator(GIVEN, GIVEN)
    assert pickle.loads(pickle.dumps(latest)) == latest


@pytest.mark.spark
def test_spark_arranges_rows_as_the_task_expects(spark: SparkSession) -> None:
    left = given_input("k int, t timestamp", ["k"])
    right = given_input("j bigint, m map<string,int>, u timestamp", ["j"], "u")
    latest = operator(left, right)
    batch: Batch = [
        (0, {"k": 1, "t": 10}),
        (0, {"k": None, "t": 10}),
        (0, {"k": 1, "t": None}),
        (1, {"j": 1, "m": [("x", 1)], "u": 10}),
        (1, {"j": None, "m": [("y", 2)], "u": 3}),
        (1, {"j": 1, "m": [], "u": None}),
    ]
    found = sent(spark, latest, batch, left, right)
    result = latest.apply(found, MemoryState(), Time(None, 99))
    assert sorted(map(str, (row.values() for row in readable(result.rows)))) == [
        "dict_values([1, 10, 1, [('x', 1)], 10])",
        "dict_values([None, 10, None, [('y', 2)], 3])",
    ]
