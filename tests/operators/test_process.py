from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.arranging import Batch, Hash, Row, arranged, given_input, sent, spread
from tests.operators.playing import Run, bag, kept, play, readable
from tests.operators.strategies import hashes, input_of, keyed, runs
from tidegate.batch.time import Time
from tidegate.errors import PipelineError, Where
from tidegate.operators import process
from tidegate.operators.operator import Input
from tidegate.pipeline import keyed_step as steps
from tidegate.testing.states import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MICROS = pa.timestamp("us", "UTC")
STATE = pa.schema({"n": pa.int64(), "timer": MICROS})
Returned = tuple[pa.Table, pa.Table]
WAIT = 9


def operator(
    function: Callable[..., Any], given: Input, state: pa.Schema = STATE, output: pa.Schema | None = None
) -> process.Process:
    schema = output or pa.schema({"key": pa.string(), "n": pa.int64(), "what": pa.string()})
    step = steps.Process("count", Where("p.py", 7), (), function, state, schema)
    return process.from_step(step, given)


def counting(names: tuple[str, ...], rows: pa.Table, state: pa.Table, time: Time) -> Returned:
    """Counts rows per key; when a key was quiet for WAIT, its count leaves and is forgotten."""
    known = {repr(tuple(row[name] for name in names)): row for row in readable(state)}
    out = []
    for row in readable(rows):
        key = repr(tuple(row[name] for name in names))
        held = known.setdefault(key, {**{name: row[name] for name in names}, "n": 0, "timer": None})
        held["n"] += 1
        held["timer"] = max(held["timer"] or 0, row["t"] + WAIT)
        out.append({"key": key, "n": held["n"], "what": str(row["t"])})
    for key, held in list(known.items()):
        if time.watermark is not None and held["timer"] <= time.watermark:
            out.append({"key": key, "n": held["n"], "what": "over"})
            del known[key]
    new = pa.Table.from_pylist(list(known.values()), state.schema)
    return pa.Table.from_pylist(
        out, pa.schema({"key": pa.string(), "n": pa.int64(), "what": pa.string()})
    ), new


def oracle(names: tuple[str, ...], batches: list[Batch], times: list[Time]) -> list[Row]:
    counts: dict[str, tuple[int, int]] = {}
    out: list[Row] = []
    for batch, time in zip(batches, times, strict=True):
        for _, row in sorted(batch, key=lambda each: each[1]["t"]):
            key = repr(tuple(row[name] for name in names))
            n, timer = counts.get(key, (0, 0))
            counts[key] = n + 1, max(timer, row["t"] + WAIT)
            out.append({"key": key, "n": n + 1, "what": str(row["t"])})
        for key, (n, timer) in list(counts.items()):
            if time.watermark is not None and timer <= time.watermark:
                out.append({"key": key, "n": n, "what": "over"})
                del counts[key]
    return out


@settings(max_examples=100)
@given(st.data(), keyed, hashes)
def test_the_function_sees_rows_state_and_timers(
    data: st.DataObject, kinds: tuple[str, ...], hash_of: Hash
) -> None:
    given = input_of(kinds)
    counts = operator(functools.partial(counting, given.keys), given)
    run = data.draw(runs(kinds, sides=1))
    tables = [arranged(counts.sides, batch, hash_of) for batch in run.batches]
    output, _, state = play(counts, tables, run.times, tasks=data.draw(st.integers(1, 3)))
    assert bag(output) == bag(oracle(given.keys, run.batches, run.times))
    assert kept(counts, state) == [[]]


@settings(max_examples=30)
@given(runs(("int",), sides=1, ended=False), hashes)
def test_the_order_of_rows_changes_nothing(run: Run, hash_of: Hash) -> None:
    seen: list[list[Row]] = []

    def watching(rows: pa.Table, state: pa.Table, time: Time) -> Returned:
        seen[-1] += readable(rows)
        return counting(("k0",), rows, state, time)

    counts = operator(watching, input_of(("int",)))
    tables = [arranged(counts.sides, batch, hash_of) for batch in run.batches]
    results = []
    for seed in (0, 1, 2):
        seen.append([])
        output, _, state = play(counts, tables, run.times, seed=seed)
        results.append((output, kept(counts, state)))
    assert seen[0] == seen[1] == seen[2]
    assert results[0] == results[1] == results[2]


GIVEN = given_input("k bigint, t timestamp")
OUTPUT = pa.schema({"k": pa.int64()})


def rows(*keys: int | None, at: int = 0) -> pa.Table:
    return arranged(
        operator(lambda *_: None, GIVEN).sides, [(0, {"k": key, "t": at}) for key in keys], spread
    )


def test_a_key_that_is_not_returned_is_forgotten() -> None:
    def forgetting(rows: pa.Table, state: pa.Table, time: Time) -> Returned:
        new = [{"k": row["k"], "n": 1} for row in rows.to_pylist() if row["k"] != 2]
        output = pa.table({"key": ["x"], "n": [state.num_rows], "what": ["y"]})
        return output, pa.Table.from_pylist(new, state.schema) if time.closed is None else state.slice(0, 0)

    step = operator(forgetting, GIVEN)
    output, _, state = play(step, [rows(1, 2, 3), rows(2, 3)], [Time(None, 5), Time(5, 5)])
    assert [row["n"] for row in output] == [0, 1]
    assert [row["key_0"] for row in state.scan(step.tables[0]).to_pylist()] == [1]


def test_a_timer_in_the_past_is_due_again_when_the_watermark_moves() -> None:
    calls = []

    def lingering(rows: pa.Table, state: pa.Table, time: Time) -> Returned:
        calls.append(time.watermark)
        if rows.num_rows:
            state = pa.table({"k": rows["k"], "n": [1], "timer": pa.array([3], MICROS)})
        return pa.Table.from_pylist(
            [], pa.schema({"key": pa.string(), "n": pa.int64(), "what": pa.string()})
        ), state

    times = [Time(None, None), Time(None, 2), Time(2, 3), Time(3, 3), Time(3, 9)]
    *_, state = play(operator(lingering, GIVEN), [rows(1), rows(), rows(), rows(), rows()], times)
    assert calls == [None, 3, 9]
    assert state.scan(operator(lingering, GIVEN).tables[0])["state.n"].to_pylist() == [1]


def test_without_a_timer_column_state_stays() -> None:
    def constant(rows: pa.Table, state: pa.Table, time: Time) -> Returned:
        return rows.select(["k"]), rows.select(["k"]).append_column("n", rows["k"])

    step = operator(constant, GIVEN, pa.schema({"n": pa.int32()}), OUTPUT)
    output, _, state = play(step, [rows(4), rows()], [Time(None, None), Time(None, 10**15)])
    assert output == [{"k": 4}]
    assert state.scan(step.tables[0])["state.n"].to_pylist() == [4]


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ({"k": [1, 7], "n": [0, 0]}, r"count \(declared at p.py:7\): .* key \(7,\).* not given"),
        ({"k": [1, 1], "n": [0, 0]}, r"count \(declared at p.py:7\): .* key \(1,\) more than once"),
        ({"k": [1]}, r"count \(declared at p.py:7\).*n"),
        ({"k": [1], "n": ["x"]}, r"count \(declared at p.py:7\)"),
    ],
)
def test_a_wrong_state_is_told_with_the_step(new: dict[str, list[Any]], problem: str) -> None:
    state = pa.schema({"n": pa.int64()})
    step = operator(lambda rows, state, time: (rows.select(["k"]), pa.table(new)), GIVEN, state, OUTPUT)
    with pytest.raises(RuntimeError, match=problem):
        play(step, [rows(1)], [Time(None, None)])


def test_an_error_names_the_step_and_the_line_of_the_function() -> None:
    def broken(rows: pa.Table, state: pa.Table, time: Time) -> Returned:
        raise KeyError("no such thing")

    line = broken.__code__.co_firstlineno + 1
    problem = re.escape(f"count (declared at p.py:7), in line {line}: KeyError: 'no such thing'")
    with pytest.raises(RuntimeError, match=problem):
        play(operator(broken, GIVEN), [rows(1)], [Time(None, None)])


def test_a_key_among_the_state_columns_is_refused() -> None:
    with pytest.raises(PipelineError, match="'k', which is a key"):
        operator(print, GIVEN, pa.schema({"k": pa.int64()}))


def test_a_timer_that_is_no_timestamp_is_refused() -> None:
    with pytest.raises(PipelineError, match="'timer' is a int64"):
        operator(print, GIVEN, pa.schema({"timer": pa.int64()}))


def test_it_is_pickled() -> None:
    step = operator(print, GIVEN)
    assert pickle.loads(pickle.dumps(step)) == step


@pytest.mark.spark
def test_spark_arranges_rows_as_the_task_expects(spark: SparkSession) -> None:
    given = given_input("f double, m map<string,int>, t timestamp", ["f"])

    def echo(rows: pa.Table, state: pa.Table, time: Time) -> Returned:
        return rows.select(["f", "t"]), rows.select(["f"]).slice(0, 1).append_column("n", [[1]])

    output = "f double, t timestamp"
    step = process.from_step(steps.Process("echo", Where("p.py", 7), (), echo, "n int", output), given)
    batch: Batch = [
        (0, {"f": -0.0, "m": None, "t": 2}),
        (0, {"f": 0.0, "m": [("a", 1)], "t": 1}),
        (0, {"f": 0.0, "m": [], "t": None}),
    ]
    found = sent(spark, step, batch, given)
    state = MemoryState()
    result = step.apply(found, state, Time(None, None))
    assert [tuple(row.values()) for row in readable(result.rows)] == [(0.0, None), (0.0, 1), (0.0, 2)]
    state.commit()
    assert str(state.scan(step.tables[0])["key_0"].to_pylist()) == "[0.0]"
