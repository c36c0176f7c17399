"""What is open at the end of a run, or when all sources are silent, is closed by a batch of its own."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import START, read
from tidegate import config
from tidegate.control.controls import Controls
from tidegate.testing import faults
from tidegate.testing.faults import Fault, InjectedError

pytestmark = pytest.mark.spark


def add(folder: Path, name: str, *rows: tuple[str, float]) -> tg.sources.Files:
    """One more file of rows (id, seconds after the start)."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": id, "at": (START + timedelta(seconds=at)).isoformat()}) for id, at in rows]
    (folder / f".{name}").write_text("\n".join(lines))
    (folder / f".{name}").rename(folder / f"{name}.json")
    return tg.sources.Files(folder, format="json", schema="id string, at timestamp", event_time="at")


def at(row: dict[str, Any], column: str) -> float:
    found: float = (row[column] - START).total_seconds()
    return found


def alarm(rows: pa.Table, state: pa.Table, time: Any) -> tuple[pa.Table, pa.Table]:
    """A row for each key whose timer is due: an hour after it was last seen."""
    if rows.num_rows:
        last = rows.group_by("id").aggregate([("at", "max")]).rename_columns(["id", "timer"])
        hour = pa.scalar(timedelta(hours=1), pa.duration("us"))
        timers = pc.add(last["timer"], hour)
        return state.select(["id"]).slice(0, 0), pa.table({"id": last["id"], "timer": timers})
    due = pc.less_equal(state["timer"].cast(pa.int64()), time.watermark)
    return state.filter(due).select(["id"]), state.filter(pc.invert(due))


def test_the_end_closes_windows_after_windows_sessions_joins_and_timers_once(
    run: Run, tmp_path: Path
) -> None:
    """The driver fails right after the commit of the closing batch; the next run publishes it. Later rows of
    windows that were closed are late, and others are not."""
    source = add(tmp_path / "in", "first", ("a", 1), ("a", 5), ("b", 6))
    other = add(tmp_path / "other", "first", ("a", 5.5))

    def pipeline() -> tg.Pipeline:
        p = tg.Pipeline("closing")
        rows, others = p.source(source), p.source(other)
        counts = rows.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
        wide = counts.key_by("id").window(tg.tumbling("8 s")).aggregate(n=tg.agg.sum("n"))
        wide.sink(tg.sinks.Files(tmp_path / "wide"))
        sessions = rows.key_by("id").window(tg.session("2 s")).aggregate(n=tg.agg.count())
        sessions.sink(tg.sinks.Files(tmp_path / "sessions"))
        pairs = rows.interval_join(others, on="id", after="1 s", how="left")
        pairs.sink(tg.sinks.Files(tmp_path / "pairs"))
        rows.key_by("id").process(alarm, state_schema="timer timestamp", output_schema="id string").sink(
            tg.sinks.Files(tmp_path / "alarms")
        )
        return p

    small = {"engine__parallelism": 1, "state__nodes": 1, "state__key_groups": 1}
    plan = [Fault("driver.written", "error", batch_id=1), Fault("driver.appended", "error", batch_id=1)]
    with faults.planned(tmp_path / "faults", plan), pytest.raises(InjectedError):
        run(pipeline(), **small)
    assert faults.struck(tmp_path / "faults") == {fault.name for fault in plan}
    assert [tg.read(tmp_path / name).num_rows for name in ("wide", "sessions", "alarms")] == [0, 0, 0]
    run(pipeline(), **small)
    assert sorted((row["id"], row["n"]) for row in read(tmp_path / "wide")) == [("a", 2), ("b", 1)]
    sessions = sorted((row["id"], at(row, "window_end")) for row in read(tmp_path / "sessions"))
    assert sessions == [("a", 3), ("a", 7), ("b", 8)]
    pairs = sorted((row["id"], at(row, "at"), row["at_right"] is None) for row in read(tmp_path / "pairs"))
    assert pairs == [("a", 1, True), ("a", 5, False), ("b", 6, True)]
    assert sorted(row["id"] for row in read(tmp_path / "alarms")) == ["a", "b"]

    add(tmp_path / "in", "second", ("a", 7), ("a", 9000))
    _, told = run(pipeline(), **small)
    assert [batch.late for batch in told] == [3, 0], "for the window, the session and the join"
    assert sorted((row["id"], row["n"]) for row in read(tmp_path / "wide")) == [("a", 1), ("a", 2), ("b", 1)]


def test_silence_closes_what_the_end_would_keep(run: Run, tmp_path: Path) -> None:
    def go(**settings: Any) -> list[tg.BatchProgress]:
        p = tg.Pipeline("silence")
        counts = p.source(source).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
        counts.sink(tg.sinks.Files(tmp_path / "out"))
        return run(p, engine__close_at_end=False, **settings)[1]

    source = add(tmp_path / "in", "first", ("a", 1))
    assert [batch.idle for batch in go()] == [()]
    assert read(tmp_path / "out") == [], "it is kept, for rows that come later"
    add(tmp_path / "in", "second", ("a", 2))
    assert [(batch.idle, batch.rows_in) for batch in go(engine__idle="1 ms")] == [((), 1), (("source-1",), 0)]
    assert [row["n"] for row in read(tmp_path / "out")] == [2]


def test_rows_after_what_was_closed_are_on_time(run: Run, tmp_path: Path) -> None:
    """However many steps wait for one another: windows that no row has begun are not closed."""
    source = add(tmp_path / "in", "first", ("a", 1), ("a", 5))

    def late() -> int:
        p = tg.Pipeline("after")
        short = p.source(source).key_by("id").window(tg.tumbling("2 s")).aggregate(n=tg.agg.count())
        long = short.key_by("id").window(tg.tumbling("10 s")).aggregate(n=tg.agg.sum("n"))
        long.sink(tg.sinks.Files(tmp_path / "out"))
        return run(p)[0].late

    assert late() == 0
    assert [row["n"] for row in read(tmp_path / "out")] == [2]
    add(tmp_path / "in", "second", ("a", 10), ("a", 11))
    assert late() == 0
    assert [row["n"] for row in read(tmp_path / "out")] == [2, 2]


class Stop(logging.Handler):
    """Stops the run at the first message."""

    def attach(self, controls: Controls) -> None:
        self.controls = controls

    def __call__(self, progress: tg.BatchProgress) -> None:
        pass

    def emit(self, record: logging.LogRecord) -> None:
        self.controls.stop()


def test_that_windows_wait_for_a_silent_source_is_said(
    tmp_path: Path, spark: object, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.run.runner.SILENCE", 0.0)
    p = tg.Pipeline("quiet")
    source = add(tmp_path / "in", "first", ("a", 1))
    counts = p.source(source).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    counts.sink(tg.sinks.Files(tmp_path / "out"))
    overrides = {"engine.checkpoint": str(tmp_path / "checkpoint"), "engine.interval": "100 ms"}
    stop, logger = Stop(logging.WARNING), logging.getLogger("tidegate.run.runner")
    logger.addHandler(stop)
    try:
        summary = p.run(config=config.load(environ={}, overrides=overrides), listeners=[stop], duration=120)
    finally:
        logger.removeHandler(stop)
    assert summary.stopped_by == "signal"
    assert "s from source-1: what is open, such as windows, stays open until rows come" in caplog.text


def test_the_end_comes_even_if_the_source_goes_on(run: Run, tmp_path: Path) -> None:
    source = add(tmp_path / "in", "0", ("a", 0))
    p = tg.Pipeline("endless")
    counts = p.source(source).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    counts.sink(tg.sinks.Files(tmp_path / "out"))

    def more(batch: tg.BatchProgress) -> None:
        """There is always another row when everything is closed; at some time it is enough."""
        if batch.idle and batch.batch_id < 10:
            add(tmp_path / "in", str(batch.batch_id), ("a", 10.0 * batch.batch_id))

    summary, told = run(p, listeners=[more])
    assert summary.stopped_by == "done"
    assert [batch.idle for batch in told] == [(), ("source-1",)], "it is closed once"
    assert [row["n"] for row in read(tmp_path / "out")] == [1]
