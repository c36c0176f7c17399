from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.arranging import (
    Batch,
    Hash,
    Row,
    arranged,
    as_sent,
    colliding,
    frame,
    given_input,
    spread,
)
from tests.operators.playing import Run, bag, kept, orders, pair, play
from tests.operators.strategies import hashes, input_of, keyed, runs
from tidegate.batch.time import Time
from tidegate.errors import PipelineError, Where
from tidegate.operators import window_join
from tidegate.operators.kit.sides import TIME
from tidegate.operators.operator import Input
from tidegate.pipeline import keyed_step as steps
from tidegate.pipeline.window import Session, Sliding, Tumbling, Window
from tidegate.state.table.table import DUE, HASH
from tidegate.testing.states import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

How = Literal["inner", "left"]


def join(left: Input, right: Input, window: Window, how: How = "inner") -> window_join.WindowJoin:
    on = tuple(zip(left.keys, right.keys, strict=True))
    step = steps.WindowJoin("join", Where("p.py", 1), (), on=on, window=window, how=how)
    return window_join.from_step(step, left, right)


def table_of(operator: window_join.WindowJoin, rows: Batch, hash_of: Hash = spread) -> pa.Table:
    exploded = []
    for side, row in rows:
        keys = operator.sides.each[side].key_types
        if any(row[key] is None for key, _ in keys) and (side or operator.how == "inner"):
            continue
        last = row["t"] // operator.every * operator.every
        for start in range(last, last - operator.size, -operator.every):
            exploded.append((side, row, start + operator.size))
    table = arranged(operator.sides, [(side, row) for side, row, _ in exploded], lambda key: 0)
    dues = [due for *_, due in exploded]
    listed = [table[key].to_pylist() for key in operator.sides.keys.names]
    mixed = [hash_of(key) for key in zip(*listed, dues, strict=True)]
    table = table.set_column(0, HASH, pa.array(mixed, pa.uint64()))
    return table.append_column(DUE, pa.array(dues, pa.int64())).drop_columns([TIME])


def oracle(
    operator: window_join.WindowJoin, rows: Sequence[tuple[int, Row, int | None]]
) -> tuple[list[Row], int]:
    """Pairs by nested loops, and the late ones; each row with what was closed when it came."""
    windows: list[tuple[int, Row, int]] = []
    late = 0
    for side, row, closed in rows:
        keys = [row[key] for key, _ in operator.sides.each[side].key_types]
        if None in keys and (side or operator.how == "inner"):
            continue
        for start in range(-operator.size, row["t"] + 1):
            if start % operator.every == 0 and start <= row["t"] < start + operator.size:
                if closed is not None and start + operator.size <= closed:
                    late += 1
                else:
                    windows.append((side, row, start))
    out = []
    for side, left, start in windows:
        if side:
            continue
        met: list[Row | None] = [
            right
            for other, right, begin in windows
            if other
            and begin == start
            and all(map(_equal, _keys(operator, 0, left), _keys(operator, 1, right)))
        ]
        for right in met or ([None] if operator.how == "left" else []):
            out.append(pair(operator, left, right, start, start + operator.size))
    return out, late


def _keys(operator: window_join.WindowJoin, side: int, row: Row) -> list[Any]:
    return [row[key] for key, _ in operator.sides.each[side].key_types]


def _equal(a: Any, b: Any) -> bool:
    return a is not None and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


@settings(max_examples=150)
@given(
    st.data(), keyed, hashes, st.sampled_from(["inner", "left"]), st.sampled_from([(8, 8), (8, 4), (9, 3)])
)
def test_pairs_equal_a_nested_loop(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash, how: How, window: tuple[int, int]
) -> None:
    operator = join(input_of(kinds), input_of(kinds), Sliding(window[0] / 1e6, window[1] / 1e6), how)
    run = data.draw(runs(kinds))
    tables = [table_of(operator, batch, hash_of) for batch in run.batches]
    output, late, state = play(operator, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    came = [
        (side, row, time.closed)
        for batch, time in zip(run.batches, run.times, strict=True)
        for side, row in batch
    ]
    expected, expected_late = oracle(operator, came)
    assert bag(output) == bag(expected)
    assert late == expected_late
    assert kept(operator, state) == [[], []]


@settings(max_examples=40)
@given(runs(("int",), ended=False), hashes)
def test_the_order_of_rows_changes_nothing(run: Run, hash_of: Hash) -> None:
    operator = join(input_of(("int",)), input_of(("int",)), Tumbling(8e-6), "left")
    tables = [table_of(operator, batch, hash_of) for batch in run.batches]
    assert len(orders(operator, tables, run)) == 1


def test_keys_of_different_names_and_types_meet() -> None:
    left = given_input("id bigint, t timestamp, name string", ["id"])
    right = given_input("id bigint, t timestamp, value double", ["value"])
    operator = join(left, right, Tumbling(10e-6))
    assert operator.output.names == [
        "window_start",
        "window_end",
        "id",
        "t",
        "name",
        "id_right",
        "t_right",
        "value",
    ]
    rows: Batch = [(0, {"id": 2, "t": 1, "name": "a"}), (1, {"id": 9, "t": 3, "value": 2.0})]
    output, *_ = play(operator, [table_of(operator, rows)], [Time(None, 10)])
    assert [tuple(row.values()) for row in output] == [(0, 10, 2, 1, "a", 9, 3, 2.0)]


def test_a_row_whose_window_ended_at_the_watermark_before_is_late() -> None:
    given = given_input("k bigint, t timestamp")
    operator = join(given, given, Tumbling(10e-6))
    rows: Batch = [(side, {"k": 1, "t": at}) for side in (0, 1) for at in (9, 10)]
    output, late, _ = play(operator, [table_of(operator, rows)], [Time(10, 20)])
    assert late == 2
    assert [(row["t"], row["t_right"]) for row in output] == [(10, 10)]


def test_a_side_may_consist_of_its_key() -> None:
    left = given_input("k string, t timestamp")
    right = given_input("t timestamp", ["t"])
    operator = join(given_input("t timestamp", ["t"]), right, Tumbling(10e-6), "left")
    assert operator.output.names == ["window_start", "window_end", "t"]
    rows: Batch = [(0, {"t": 1}), (1, {"t": 1}), (0, {"t": 2})]
    output, *_ = play(operator, [table_of(operator, rows)], [Time(None, 10)])
    assert sorted(row["t"] for row in output) == [1, 2]
    with pytest.raises(PipelineError, match=r"string .* timestamp"):
        join(left, right, Tumbling(1.0))


def test_a_whole_window_of_one_hash_is_told_apart_by_its_keys() -> None:
    given = given_input("k bigint, t timestamp")
    operator = join(given, given, Tumbling(10e-6))
    rows = [(side, {"k": key, "t": 0}) for side in (0, 1) for key in range(20)]
    output, *_ = play(operator, [table_of(operator, rows, colliding)], [Time(None, 10)])
    assert sorted(row["k"] for row in output) == list(range(20))


@pytest.mark.parametrize(
    ("left", "right", "window", "problem"),
    [
        (given_input("k int, t timestamp"), given_input("k int, t timestamp"), Session(1.0), "session"),
        (
            given_input("k int", event_time=None),
            given_input("k int, t timestamp"),
            Tumbling(1.0),
            "left .* event",
        ),
        (
            given_input("k int, t timestamp"),
            given_input("k int", event_time=None),
            Tumbling(1.0),
            "right .* event",
        ),
        (given_input("k int, t timestamp"), given_input("k string, t timestamp"), Tumbling(1.0), "cast"),
        (
            given_input("k int, t timestamp, window_start int"),
            given_input("k int, t timestamp"),
            Tumbling(1.0),
            "window_start",
        ),
        (
            given_input("k int, t timestamp"),
            given_input("k int, t timestamp, t_right int"),
            Tumbling(1.0),
            "t_right",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(left: Input, right: Input, window: Window, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        join(left, right, window)


def test_it_is_pickled() -> None:
    given = given_input("k bigint, t timestamp")
    operator = join(given, given, Tumbling(1.0))
    assert pickle.loads(pickle.dumps(operator)) == operator


@pytest.mark.spark
@pytest.mark.parametrize("how", ["inner", "left"])
def test_spark_arranges_rows_as_the_task_expects(spark: SparkSession, how: How) -> None:
    left = given_input("id int, f double, t timestamp, m map<string,int>", ["id", "f"])
    right = given_input("t timestamp, ref bigint, f double, v string", ["ref", "f"])
    operator = join(left, right, Sliding(8e-6, 4e-6), how)
    batch: Batch = [
        (0, {"id": 1, "f": -0.0, "t": 9, "m": [("a", 1)]}),
        (0, {"id": None, "f": 1.0, "t": 2, "m": None}),
        (0, {"id": 3, "f": math.nan, "t": -1, "m": []}),
        (1, {"t": 9, "ref": 1, "f": 0.0, "v": "x"}),
        (1, {"t": 9, "ref": None, "f": 0.0, "v": "y"}),
    ]
    found = operator.arrange(frame(spark, batch, left, right), lambda frame: frame).toArrow()
    expected = table_of(operator, batch)
    assert set(found.column_names) == set(expected.column_names) - {"_tie"}
    names = [name for name in found.column_names if name != HASH]
    assert bag(
        found.select(names).cast(pa.schema([expected.schema.field(n) for n in names])).to_pylist()
    ) == bag(expected.select(names).to_pylist())
    met = {tuple(row[name] for name in ("key_0", "key_1", DUE)): row[HASH] for row in found.to_pylist()}
    assert len(set(met.values())) == len(met)
    output = operator.apply(as_sent(found), MemoryState(), Time(None, 10**9))
    pairs = [row for row in output.rows.to_pylist() if row["v"] is not None]
    assert [(row["id"], row["ref"], row["v"]) for row in pairs] == [(1, 1, "x")] * 2
    assert output.rows.num_rows == (6 if how == "left" else 2)
