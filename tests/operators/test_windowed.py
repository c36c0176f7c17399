"""Aggregates per tumbling and sliding window against a plain computation over all rows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests.operators.aggregating import Batches, Run, crowded, in_grace, keyed, operator, replays, stamp
from tests.operators.arranging import Row, spread
from tidegate.batch.time import Time
from tidegate.pipeline import agg
from tidegate.pipeline.step import Mode
from tidegate.pipeline.window import Session, Sliding, Tumbling, Window

_SECOND = 1_000_000
_COLUMNS = {"k": T.StringType(), "j": T.LongType(), "v": T.LongType(), "at": T.TimestampType()}
_AGGREGATES = {"n": agg.count(), "total": agg.sum("v"), "top": agg.max("v"), "end": agg.last("v")}
_WINDOWS = [Tumbling(4), Sliding(6, 2), Sliding(4, 4), Tumbling(0.5)]

_ROW = st.fixed_dictionaries(
    {
        "k": st.none() | st.sampled_from("ab"),
        "j": st.none() | st.integers(0, 1),
        "v": st.none() | st.integers(-9, 9),
        # Around 1970, so that windows begin before it too; half seconds, so that edges are hit.
        "at": st.integers(-20, 20).map(lambda halves: halves * _SECOND // 2),
    }
)
_BATCHES = st.lists(st.lists(st.tuples(_ROW, st.integers(0, 2)), max_size=8), min_size=1, max_size=5)


def starts(window: Tumbling | Sliding, at: int) -> list[int]:
    """The windows of an event, the earliest first."""
    every = window.every if isinstance(window, Sliding) else window.size
    size, every = round(window.size * _SECOND), round(every * _SECOND)
    last = at // every * every
    return [start for start in range(last - size, last + 1, every) if start <= at < start + size]


def expected(rows: list[Row], window: Tumbling | Sliding) -> list[Row]:
    members: dict[Any, list[Row]] = {}
    for row in rows:
        for start in starts(window, row["at"]):
            members.setdefault((row["k"], row["j"], start), []).append(row)
    found = []
    for (k, j, start), rows in members.items():
        values = [row["v"] for row in rows if row["v"] is not None]
        end = max(rows, key=lambda row: (row["at"], row["v"] is not None, row["v"] or 0))
        aggregates = {
            "k": k,
            "j": j,
            "window_start": stamp(start),
            "window_end": stamp(start + round(window.size * _SECOND)),
            "n": len(rows),
            "total": sum(values) if values else None,
            "top": max(values, default=None),
            "end": end["v"],
        }
        found.append(aggregates)
    return found


@settings(max_examples=50)
@given(
    batches=_BATCHES,
    window=st.sampled_from(_WINDOWS),
    grace=st.sampled_from([0.0, 1.0, 5.0]),
    tasks=st.integers(1, 3),
    hash=st.sampled_from([spread, crowded]),
)
def test_append_equals_a_plain_computation_and_each_window_leaves_once(
    batches: Batches, window: Tumbling | Sliding, grace: float, tasks: int, hash: Callable[..., int]
) -> None:
    batches = in_grace(batches, grace)
    run = Run(operator(_COLUMNS, ["k", "j"], _AGGREGATES, window), tasks, hash)
    run.batches(batches, grace)
    assert keyed(run.rows) == keyed(expected([row for batch in batches for row, _ in batch], window))
    assert len(run.rows) == len(keyed(run.rows))
    assert run.late == 0
    assert run.state.scan(run.operator.tables[0]).num_rows == 0


@settings(max_examples=50)
@given(batches=_BATCHES, window=st.sampled_from(_WINDOWS), grace=st.sampled_from([0.0, 1.0, 5.0]))
def test_update_gives_the_windows_that_a_batch_touched(
    batches: Batches, window: Tumbling | Sliding, grace: float
) -> None:
    batches = in_grace(batches, grace)
    run = Run(operator(_COLUMNS, ["k", "j"], _AGGREGATES, window, "update"), 2)
    run.batches(batches, grace)
    assert keyed(run.rows) == keyed(expected([row for batch in batches for row, _ in batch], window))
    touched = sum(len(expected([row for row, _ in batch], window)) for batch in batches)
    assert len(run.rows) == touched


@settings(max_examples=60)
@given(
    batches=_BATCHES,
    window=st.sampled_from(_WINDOWS),
    emit=st.sampled_from(["append", "update"]),
    tasks=st.integers(1, 2),
)
def test_rows_of_closed_windows_are_dropped_and_counted_once(
    batches: Batches, window: Tumbling | Sliding, emit: Mode, tasks: int
) -> None:
    """Without grace, and with rows in any order."""
    run = Run(operator(_COLUMNS, ["k", "j"], _AGGREGATES, window, emit), tasks)
    run.batches(batches, grace=0)
    size, late, wanted = round(window.size * _SECOND), 0, 0
    closed: list[int | None] = [None, None]
    for batch in batches:
        for row, _ in batch:
            open_still = [s for s in starts(window, row["at"]) if closed[-2] is None or s + size > closed[-2]]
            late += not open_still
            wanted += len(open_still)
        seen = [row["at"] for row, _ in batch] + [mark for mark in closed[-1:] if mark is not None]
        closed.append(max(seen, default=None))
    assert run.late == late
    if emit == "append":
        assert sum(row["n"] for row in run.rows) == wanted


def test_a_row_without_event_time_is_late() -> None:
    for window in (Tumbling(1), Sliding(3, 1)):
        run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, window))
        rows = [({"k": "a", "v": 1, "at": at}, 0) for at in (None, None, 0)]
        run.batch(rows, Time(None, None))
        assert run.late == 2


def test_a_window_leaves_when_the_watermark_reaches_its_end() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, Tumbling(1)))
    row = {"k": "a", "v": 1, "at": 0}
    assert run.batch([(row, 0)], Time(None, _SECOND - 1)) == []
    assert run.batch([(row, 0)], Time(_SECOND - 1, _SECOND)) == [
        {"k": "a", "window_start": stamp(0), "window_end": stamp(_SECOND), "n": 2}
    ]
    assert run.batch([(row, 0)], Time(_SECOND, _SECOND)) == []
    assert run.late == 1


def test_state_is_kept_by_key_and_window_until_its_end() -> None:
    run = Run(operator(_COLUMNS, ["k"], {"n": agg.count()}, Sliding(2, 1)))
    run.batch([({"k": "a", "v": 1, "at": 0}, 0)], Time(None, None))
    kept = run.state.scan(run.operator.tables[0]).select(["_due", "k", "window_start", "n.count"])
    assert sorted(kept.to_pylist(), key=lambda row: row["_due"]) == [
        {"_due": _SECOND, "k": "a", "window_start": -_SECOND, "n.count": 1},
        {"_due": 2 * _SECOND, "k": "a", "window_start": 0, "n.count": 1},
    ]


@settings(max_examples=30)
@given(
    batch=st.lists(st.tuples(_ROW, st.integers(0, 2)), max_size=10),
    emit=st.sampled_from(["append", "update"]),
    random=st.randoms(),
)
def test_a_replay_in_another_order_gives_the_same_bytes(
    batch: list[tuple[Row, int]], emit: Mode, random: Random
) -> None:
    aggregates = {"mean": agg.mean("v"), "var": agg.variance("v"), "half": agg.quantile("v", 0.5)}
    op = operator(_COLUMNS, ["k"], aggregates, Sliding(6, 2), emit)
    one, other = replays(op, batch, Time(None, 2 * _SECOND), random)
    assert one == other


@pytest.mark.parametrize(("window", "shift"), [(Tumbling(1), -1), (Sliding(2, 1), -1), (Session(1), 0)])
def test_a_window_happened_just_before_it_could_leave(window: Window, shift: int) -> None:
    assert window.event_time.shift == shift
