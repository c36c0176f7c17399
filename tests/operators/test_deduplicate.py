from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.arranging import Batch, Hash, arranged, given_input, sent, spread
from tests.operators.playing import Run, bag, kept, key_of, orders, play, readable
from tests.operators.strategies import hashes, input_of, keyed, runs
from tidegate.batch.time import Time
from tidegate.errors import PipelineError, Where
from tidegate.operators import deduplicate
from tidegate.operators.operator import Input
from tidegate.pipeline import keyed_step as steps
from tidegate.testing.states import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def operator(given: Input, within: int | None = None) -> deduplicate.Deduplicate:
    length = None if within is None else within / 1e6
    return deduplicate.from_step(steps.Deduplicate("once", Where("p.py", 1), (), length), given)


@settings(max_examples=100)
@given(st.data(), keyed, hashes)
def test_the_first_row_of_each_key_leaves(data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash) -> None:
    once = operator(input_of(kinds))
    run = data.draw(runs(kinds, grace=0, sides=1))
    tables = [arranged(once.sides, batch, hash_of) for batch in run.batches]
    output, late, _ = play(once, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    expected: dict[str, int] = {}
    for batch in run.batches:
        for _, row in sorted(batch, key=lambda each: each[1]["t"]):
            expected.setdefault(key_of(row), row["t"])
    assert sorted((key_of(row), row["t"]) for row in output) == sorted(expected.items())
    assert late == 0
    assert set(bag(output)) <= {
        repr(tuple((name, row[name]) for name in once.output.names))
        for batch in run.batches
        for _, row in batch
    }


@settings(max_examples=150)
@given(st.data(), keyed, hashes, st.integers(1, 20))
def test_rows_within_some_time_of_one_that_left_do_not_leave(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash, within: int
) -> None:
    once = operator(input_of(kinds), within)
    run = data.draw(runs(kinds, sides=1))
    tables = [arranged(once.sides, batch, hash_of) for batch in run.batches]
    output, late, state = play(once, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    accepted: dict[str, list[int]] = {}
    expected, expected_late = [], 0
    for batch, time in zip(run.batches, run.times, strict=True):
        for _, row in sorted(batch, key=lambda each: each[1]["t"]):
            left = accepted.setdefault(key_of(row), [])
            if time.closed is not None and row["t"] < time.closed:
                expected_late += 1
            elif all(abs(row["t"] - other) >= within for other in left):
                left.append(row["t"])
                expected.append((key_of(row), row["t"]))
    assert sorted((key_of(row), row["t"]) for row in output) == sorted(expected)
    assert late == expected_late
    assert kept(once, state) == [[]]


@settings(max_examples=40)
@given(runs(("int",), sides=1, ended=False), hashes, st.sampled_from([None, 7]))
def test_the_order_of_rows_changes_nothing(run: Run, hash_of: Hash, within: int | None) -> None:
    once = operator(input_of(("int",)), within)
    tables = [arranged(once.sides, batch, hash_of) for batch in run.batches]
    assert len(orders(once, tables, run, sorted_output=True)) == 1


def test_a_key_without_event_time_is_known_for_ever() -> None:
    once = operator(given_input("k string, v bigint", event_time=None))
    rows: Batch = [(0, {"k": "a", "v": 1}), (0, {"k": None, "v": 2}), (0, {"k": "a", "v": 3})]
    tables = [arranged(once.sides, batch, spread) for batch in (rows, rows[:2])]
    output, *_ = play(once, tables, [Time(None, None), Time(None, 10**15)])
    assert sorted(str(row["k"]) for row in output) == ["None", "a"]


def test_a_row_shortly_before_one_that_left_does_not_leave() -> None:
    once = operator(given_input("k string, t timestamp"), 5)
    batches: list[Batch] = [[(0, {"k": "a", "t": at})] for at in (10, 6, 5, 14, 15)]
    tables = [arranged(once.sides, batch, spread) for batch in batches]
    output, *_ = play(once, tables, [Time(None, None)] * 5)
    assert [row["t"] for row in output] == [10, 5, 15]


def test_within_needs_an_event_time() -> None:
    with pytest.raises(PipelineError, match="event time"):
        operator(given_input("k string", event_time=None), 5)


def test_it_is_pickled() -> None:
    once = operator(given_input("k string, t timestamp"), 5)
    assert pickle.loads(pickle.dumps(once)) == once


@pytest.mark.spark
def test_spark_arranges_rows_as_the_task_expects(spark: SparkSession) -> None:
    given = given_input("f double, m map<string,int>, t timestamp", ["f"])
    once = operator(given, 10)
    batch: Batch = [
        (0, {"f": 0.0, "m": None, "t": 2}),
        (0, {"f": -0.0, "m": [("a", 1)], "t": 1}),
        (0, {"f": 3.0, "m": [], "t": None}),
    ]
    found = sent(spark, once, batch, given)
    result = once.apply(found, MemoryState(), Time(None, None))
    assert str(readable(result.rows)) == "[{'f': -0.0, 'm': [('a', 1)], 't': 1}]"
