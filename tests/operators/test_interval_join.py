from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.arranging import Batch, Hash, Row, arranged, given_input, sent, spread
from tests.operators.playing import Run, bag, kept, key_of, orders, pair, play, readable
from tests.operators.strategies import hashes, input_of, keyed, runs
from tidegate.batch.time import Time
from tidegate.errors import PipelineError, Where
from tidegate.operators import interval_join
from tidegate.operators.operator import Input
from tidegate.pipeline import keyed_step as steps
from tidegate.pipeline.window import EventTime
from tidegate.testing.states import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

How = Literal["inner", "left"]


def operator(
    left: Input, right: Input, before: int = 5, after: int = 3, how: How = "inner"
) -> interval_join.IntervalJoin:
    on = tuple(zip(left.keys, right.keys, strict=True))
    step = steps.IntervalJoin("near", Where("p.py", 1), (), on, how, before / 1e6, after / 1e6)
    return interval_join.from_step(step, left, right)


def joinable(near: interval_join.IntervalJoin, rows: Batch) -> Batch:
    keys = [[key for key, _ in side.key_types] for side in near.sides.each]
    return [
        (side, row)
        for side, row in rows
        if (near.how == "left" and side == 0) or all(row[key] is not None for key in keys[side])
    ]


def oracle(near: interval_join.IntervalJoin, rows: Batch) -> list[Row]:
    out = []
    for left in (row for side, row in joinable(near, rows) if side == 0):
        met: list[Row | None] = [
            right
            for side, right in joinable(near, rows)
            if side
            and left["t"] - near.before <= right["t"] <= left["t"] + near.after
            and key_of(left) == key_of(right)
        ]
        out += [pair(near, left, right) for right in met or ([None] if near.how == "left" else [])]
    return out


@settings(max_examples=150)
@given(st.data(), keyed, hashes, st.sampled_from(["inner", "left"]), st.integers(0, 12), st.integers(0, 12))
def test_pairs_equal_a_nested_loop(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash, how: How, before: int, after: int
) -> None:
    near = operator(input_of(kinds), input_of(kinds), before, after, how)
    run = data.draw(runs(kinds, on_time=True))
    tables = [arranged(near.sides, joinable(near, batch), hash_of) for batch in run.batches]
    output, late, state = play(near, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    assert bag(output) == bag(oracle(near, [row for batch in run.batches for row in batch]))
    assert late == 0
    assert kept(near, state) == [[], []]


@settings(max_examples=40)
@given(runs(("int",), ended=False), hashes)
def test_the_order_of_rows_changes_nothing(run: Run, hash_of: Hash) -> None:
    near = operator(input_of(("int",)), input_of(("int",)), how="left")
    tables = [arranged(near.sides, joinable(near, batch), hash_of) for batch in run.batches]
    assert len(orders(near, tables, run)) == 1


GIVEN = given_input("k string, t timestamp")


def rows(near: interval_join.IntervalJoin, *sided: tuple[int, int]) -> Any:
    return arranged(near.sides, [(side, {"k": "a", "t": at}) for side, at in sided], spread)


def test_a_left_row_leaves_when_no_partner_can_come_any_more() -> None:
    near, state = operator(GIVEN, GIVEN, before=5, after=3), MemoryState()
    assert near.apply(rows(near, (0, 10), (1, 5)), state, Time(None, None)).rows.num_rows == 0
    state.commit(None)
    # A row at the watermark itself is on time.
    assert near.apply(rows(near, (1, 13)), state, Time(None, 13)).rows.num_rows == 0
    state.commit(13)
    result = near.apply(rows(near), state, Time(13, 14))
    assert sorted(row["t_right"] for row in readable(result.rows)) == [5, 13]


def test_rows_that_come_after_they_would_have_left_are_late() -> None:
    near = operator(GIVEN, GIVEN, before=5, after=3)
    sided = [(0, 10), (0, 11), (1, 5), (1, 6)]
    output, late, _ = play(near, [rows(near, *sided)], [Time(14, 99)])
    assert late == 2
    assert [(row["t"], row["t_right"]) for row in output] == [(11, 6)]


def test_keys_of_different_names_and_types_meet() -> None:
    left = given_input("id bigint, t timestamp", ["id"])
    right = given_input("u timestamp, value double", ["value"], "u")
    near = operator(left, right)
    assert near.output.names == ["id", "t", "u", "value"]
    batch: Batch = [(0, {"id": 2, "t": 1}), (1, {"u": 3, "value": 2.0}), (1, {"u": 3, "value": math.nan})]
    output, *_ = play(near, [arranged(near.sides, batch, spread)], [Time(None, 99)])
    assert output == [{"id": 2, "t": 1, "u": 3, "value": 2.0}]


def test_the_event_time_of_a_pair_is_the_later_of_both() -> None:
    left = given_input("k string, t timestamp, u timestamp")
    right = given_input("k string, t timestamp", ["k"])
    found = operator(left, right).output_time(left.event_time)
    assert found is not None
    assert found.columns == ("t", "t_right")
    renamed = given_input("k string, at timestamp", ["k"], "at")
    assert operator(left, renamed).output_time(left.event_time) == EventTime("t", 0, EventTime("at"))
    # Pairs of pairs.
    pairs = Input(left.schema, ("k",), EventTime("t", 0, EventTime("u")))
    again = operator(pairs, renamed).output_time(pairs.event_time)
    assert again is not None
    assert again.columns == ("t", "u", "at")
    by_time = given_input("t timestamp, v int", ["t"])
    assert operator(by_time, by_time).output_time(by_time.event_time) == EventTime("t", 0, EventTime("t"))


def test_a_stream_without_event_time_is_refused() -> None:
    for inputs in (
        (GIVEN, given_input("k string", event_time=None)),
        (given_input("k string", event_time=None), GIVEN),
    ):
        with pytest.raises(PipelineError, match="no event time"):
            operator(*inputs)


def test_it_is_pickled() -> None:
    near = operator(GIVEN, GIVEN)
    assert pickle.loads(pickle.dumps(near)) == near


@pytest.mark.spark
def test_spark_arranges_rows_as_the_task_expects(spark: SparkSession) -> None:
    left = given_input("k int, t timestamp", ["k"])
    right = given_input("j bigint, v string, u timestamp", ["j"], "u")
    near = operator(left, right, how="left")
    batch: Batch = [
        (0, {"k": 1, "t": 10}),
        (0, {"k": None, "t": 10}),
        (0, {"k": 1, "t": None}),
        (1, {"j": 1, "v": "x", "u": 13}),
        (1, {"j": None, "v": "y", "u": 13}),
        (1, {"j": 1, "v": "z", "u": None}),
    ]
    found = sent(spark, near, batch, left, right)
    result = near.apply(found, MemoryState(), Time(None, 99))
    assert sorted(map(str, (row.values() for row in readable(result.rows)))) == [
        "dict_values([1, 10, 1, 'x', 13])",
        "dict_values([None, 10, None, None, None])",
    ]
