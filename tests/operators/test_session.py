"""Aggregates per session against a plain computation over all rows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests.operators.aggregating import Batches, Run, crowded, in_grace, keyed, operator, replays, stamp
from tests.operators.arranging import Row, spread
from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.pipeline import agg
from tidegate.pipeline.window import Session

_GAP = 3
_COLUMNS = {"k": T.StringType(), "j": T.LongType(), "v": T.LongType(), "at": T.TimestampType()}
_AGGREGATES = {"n": agg.count(), "total": agg.sum("v"), "low": agg.min("v"), "begin": agg.first("v")}
_WINDOW = Session(_GAP * 1e-6)

_ROW = st.fixed_dictionaries(
    {
        "k": st.none() | st.sampled_from("ab"),
        "j": st.none() | st.just(0),
        "v": st.none() | st.integers(-9, 9),
        "at": st.integers(-25, 25),
    }
)
_BATCHES = st.lists(st.lists(st.tuples(_ROW, st.integers(0, 2)), max_size=8), min_size=1, max_size=6)


def expected(rows: list[Row]) -> list[Row]:
    sessions: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (repr((row["k"], row["j"])), row["at"])):
        last = sessions[-1][-1] if sessions else None
        if last and (last["k"], last["j"]) == (row["k"], row["j"]) and row["at"] <= last["at"] + _GAP:
            sessions[-1].append(row)
        else:
            sessions.append([row])
    return [_aggregated(session) for session in sessions]


def _aggregated(rows: list[Row]) -> Row:
    values = [row["v"] for row in rows if row["v"] is not None]
    begin = min(rows, key=lambda row: (row["at"], row["v"] is not None, row["v"] or 0))
    return {
        "k": rows[0]["k"],
        "j": rows[0]["j"],
        "window_start": stamp(rows[0]["at"]),
        "window_end": stamp(rows[-1]["at"] + _GAP),
        "n": len(rows),
        "total": sum(values) if values else None,
        "low": min(values, default=None),
        "begin": begin["v"],
    }


@settings(max_examples=50)
@given(
    batches=_BATCHES,
    grace=st.sampled_from([0.0, 2e-6, 9e-6]),
    tasks=st.integers(1, 3),
    hash=st.sampled_from([spread, crowded]),
)
def test_equals_a_plain_computation_and_each_session_leaves_once(
    batches: Batches, grace: float, tasks: int, hash: Callable[..., int]
) -> None:
    batches = in_grace(batches, grace)
    run = Run(operator(_COLUMNS, ["k", "j"], _AGGREGATES, _WINDOW), tasks, hash)
    run.batches(batches, grace)
    assert keyed(run.rows) == keyed(expected([row for batch in batches for row, _ in batch]))
    assert len(run.rows) == len(keyed(run.rows))
    assert run.late == 0
    assert run.state.scan(run.operator.tables[0]).num_rows == 0


@settings(max_examples=60)
@given(batches=_BATCHES, tasks=st.integers(1, 2))
def test_rows_of_closed_sessions_are_dropped_and_counted(batches: Batches, tasks: int) -> None:
    """Without grace, and with rows in any order."""
    run = Run(operator(_COLUMNS, ["k", "j"], _AGGREGATES, _WINDOW), tasks)
    run.batches(batches, grace=0)
    marks: list[int | None] = [None, None]
    late = 0
    for batch in batches:
        closed = marks[-2]
        late += sum(closed is not None and row["at"] + _GAP < closed for row, _ in batch)
        seen = [row["at"] for row, _ in batch] + [mark for mark in marks[-1:] if mark is not None]
        marks.append(max(seen, default=None))
    assert run.late == late
    assert sum(row["n"] for row in run.rows) + late == sum(map(len, batches))


def _row(at: int | None, v: int = 1) -> tuple[Row, int]:
    return {"k": "a", "j": 0, "v": v, "at": at}, 0


def test_a_row_between_two_sessions_makes_them_one() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"total": agg.sum("v")}, _WINDOW))
    run.batch([_row(0, 1), _row(6, 2)], Time(None, None))
    assert run.state.scan(run.operator.tables[0])["session.start"].to_pylist() == [[0, 6]]
    run.batch([_row(3, 4)], Time(None, None))
    kept = run.state.scan(run.operator.tables[0]).to_pylist()[0]
    assert (kept["session.start"], kept["session.end"], kept["total.sum"]) == ([0], [9], [7])


def test_rows_within_a_session_do_not_split_it() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, _WINDOW))
    run.batch([_row(at) for at in range(0, 20, 2)], Time(None, None))
    run.batch([_row(1), _row(15)], Time(None, None))
    left = run.batch([], Time(None, 99))
    assert left == [{"k": "a", "window_start": stamp(0), "window_end": stamp(21), "n": 12}]


def test_a_session_leaves_when_the_watermark_has_passed_its_end_and_the_others_stay() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, _WINDOW))
    run.batch([_row(0), _row(10)], Time(None, None))
    assert run.batch([], Time(None, 3)) == []
    left = run.batch([], Time(3, 4))
    assert left == [{"k": "a", "window_start": stamp(0), "window_end": stamp(3), "n": 1}]
    kept = run.state.scan(run.operator.tables[0]).to_pylist()
    assert [(row["_due"], row["session.start"]) for row in kept] == [(14, [10])]


def test_an_event_at_the_very_end_of_a_session_still_joins_it() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, _WINDOW))
    run.batch([_row(0)], Time(None, 3))
    run.batch([_row(3)], Time(3, 3))
    assert [row["n"] for row in run.batch([], Time(3, 99))] == [2]


def test_a_row_without_event_time_is_late() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, _WINDOW))
    assert run.batch([_row(None), _row(None)], Time(None, 5)) == []
    assert run.late == 2


def test_an_aggregate_that_is_added_later_begins_with_nothing() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, _WINDOW))
    run.batch([_row(0), _row(10)], Time(None, None))
    run.operator = operator(_COLUMNS, ["k"], {"n": agg.count(), "total": agg.sum("v")}, _WINDOW)
    run.batch([_row(11, 5)], Time(None, None))
    left = run.batch([({"k": "b", "j": 0, "v": 7, "at": 1}, 0)], Time(None, 99))
    totals = {(row["k"], row["window_start"]): (row["n"], row["total"]) for row in left}
    assert totals == {("a", stamp(0)): (1, None), ("a", stamp(10)): (2, 5), ("b", stamp(1)): (1, 7)}


def test_sessions_are_not_emitted_before_they_are_final() -> None:
    with pytest.raises(PipelineError, match="session windows are emitted when they are final"):
        operator(_COLUMNS, ["k"], {"n": agg.count()}, _WINDOW, "update")


@settings(max_examples=40)
@given(batch=st.lists(st.tuples(_ROW, st.integers(0, 2)), max_size=10), random=st.randoms())
def test_a_replay_in_another_order_gives_the_same_bytes(batch: list[tuple[Row, int]], random: Random) -> None:
    aggregates = {"mean": agg.mean("v"), "half": agg.quantile("v", 0.5), "kinds": agg.approx_distinct("v")}
    op = operator(_COLUMNS, ["k"], aggregates, _WINDOW)
    one, other = replays(op, batch, Time(None, 5), random)
    assert one == other
