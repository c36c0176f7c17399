from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.arranging import Batch, Hash, Row, arranged, given_input, sent, spread, tie
from tests.operators.playing import Run, bag, kept, key_of, orders, pair, play, readable
from tests.operators.strategies import hashes, input_of, keyed, runs
from tidegate.batch.time import Time
from tidegate.errors import Where
from tidegate.operators import broadcast_join
from tidegate.operators.kit.sides import TIE
from tidegate.operators.operator import SIDE, Input
from tidegate.pipeline import keyed_step as steps
from tidegate.state.table.keys import group_of, hash_column
from tidegate.state.table.table import HASH
from tidegate.testing.states import MemoryState, part_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 4


def operator(left: Input, right: Input, condition: str = "true") -> broadcast_join.BroadcastJoin:
    step = steps.BroadcastJoin("rules", Where("p.py", 1), (), condition)
    return broadcast_join.from_step(step, left, replace(right, groups=GROUPS))


def table_of(rules: broadcast_join.BroadcastJoin, batch: Batch, hash_of: Hash = spread) -> pa.Table:
    """Rules once for each key group, other rows wherever their tie puts them."""
    copied = [(each, copy) for each in batch for copy in range(GROUPS if each[0] else 1)]
    table = arranged(rules.sides, [each for each, _ in copied], hash_of)
    copies, rows = [copy for _, copy in copied], table.to_pylist()
    placed = [
        copy << 62 | row[HASH] >> 2 if row[SIDE] else row[TIE] % 2**64
        for row, copy in zip(rows, copies, strict=True)
    ]
    table = table.set_column(0, HASH, pa.array(placed, pa.uint64()))
    return table.append_column("copy", pa.array(copies, pa.int32()))


@settings(max_examples=120)
@given(st.data(), keyed, hashes)
def test_with_event_time_a_row_meets_the_rules_of_its_time(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash
) -> None:
    rules = operator(input_of(kinds), input_of(kinds))
    run = data.draw(runs(kinds, grace=20, latest=30, on_time=True))
    tables = [table_of(rules, batch, hash_of) for batch in run.batches]
    output, late, state = play(rules, tables, run.times, tasks=data.draw(st.sampled_from([1, 2, 4])))
    every = [row for batch in run.batches for row in batch]
    expected = []
    for left in (row for side, row in every if side == 0):
        current: dict[str, Row] = {}
        for right in sorted((row for side, row in every if side), key=lambda row: (row["t"], tie(row))):
            if right["t"] <= left["t"]:
                current[key_of(right)] = right
        expected += [pair(rules, left, right) for right in current.values()]
    assert bag(output) == bag(expected)
    assert late == 0
    assert kept(rules, state)[0] == []


@settings(max_examples=80)
@given(st.data(), keyed, hashes)
def test_without_event_time_a_row_meets_the_current_rules_at_once(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash
) -> None:
    rules = operator(input_of(kinds, None), input_of(kinds))
    run = data.draw(runs(kinds, grace=0))
    tables = [table_of(rules, batch, hash_of) for batch in run.batches]
    output, *_ = play(rules, tables, run.times, tasks=data.draw(st.sampled_from([1, 2, 4])))
    current: dict[str, Row] = {}
    expected = []
    for batch in run.batches:
        for row in (row for side, row in batch if side):
            known = current.get(key_of(row))
            if known is None or (known["t"], tie(known)) < (row["t"], tie(row)):
                current[key_of(row)] = row
        for row in (row for side, row in batch if not side):
            expected += [pair(rules, row, rule) for rule in current.values()]
    assert bag(output) == bag(expected)


@settings(max_examples=30)
@given(runs(("int",), ended=False), hashes, st.sampled_from([None, "t"]))
def test_the_order_of_rows_changes_nothing(run: Run, hash_of: Hash, time: str | None) -> None:
    rules = operator(input_of(("int",), time), input_of(("int",), time))
    tables = [table_of(rules, batch, hash_of) for batch in run.batches]
    assert len(orders(rules, tables, run, tasks=2)) == 1


def test_rules_stay_when_the_number_of_tasks_changes() -> None:
    given = given_input("k string", event_time=None)
    rules, state = operator(given, given), MemoryState()
    batches: list[Batch] = [
        [(1, {"k": "a"}), (1, {"k": "b"})],
        [(0, {"k": str(number)}) for number in range(20)],
    ]
    for batch, tasks in zip(batches, (1, 4), strict=True):
        table, met = table_of(rules, batch), 0
        owner = part_of(hash_column(table[HASH]), tasks)
        for index, part in enumerate(state.parts(tasks)):
            met += rules.apply(table.filter(pa.array(owner == index)), part, Time(None, None)).rows.num_rows
        state.commit()
    assert met == 40


def test_it_is_pickled() -> None:
    given = given_input("k string, t timestamp")
    rules = operator(given, given)
    assert pickle.loads(pickle.dumps(rules)) == rules


@pytest.mark.spark
def test_spark_arranges_rows_as_the_task_expects_and_applies_the_condition(spark: SparkSession) -> None:
    left = given_input("v int, m map<string,int>", [], None)
    right = given_input("k string, v int, active boolean", ["k"], None)
    rules = operator(left, right, "v >= v_right and active")
    batch: Batch = [
        (0, {"v": 1, "m": None}),
        (0, {"v": 5, "m": [("a", 1)]}),
        (1, {"k": "big", "v": 4, "active": True}),
        (1, {"k": None, "v": 1, "active": True}),
        (1, {"k": "gone", "v": 0, "active": False}),
    ]
    found = sent(spark, rules, batch, left, right)
    copies = found.filter(pa.array(found[SIDE].to_numpy() == 1))
    assert copies.num_rows == 3 * GROUPS
    assert (group_of(hash_column(copies[HASH]), GROUPS) == copies["copy"].to_numpy()).all()
    result = rules.apply(found, MemoryState(), Time(None, None))
    kept = rules.finish(spark.createDataFrame(result.rows)).toArrow()
    assert sorted((row["v"], str(row["k"]), row["v_right"]) for row in readable(kept)) == [
        (1, "None", 1),
        (5, "None", 1),
        (5, "big", 4),
    ]
