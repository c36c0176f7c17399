"""Steps with state in real runs: the output equals a plain computation over the same rows."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import START, latest, read, rows_of, sensors, windows
from tidegate.errors import CheckpointError
from tidegate.ledger.ledger import Ledger
from tidegate.run.drop import drop

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_running_count(run: Run, tmp_path: Path, nodes: int) -> None:
    p = tg.Pipeline("count")
    counted = p.source(sensors(5000)).key_by("id").aggregate(n=tg.agg.count(), most=tg.agg.max("value"))
    counted.sink(tg.sinks.Files(tmp_path / "out"))
    _, told = run(p, state__nodes=nodes, engine__parallelism=4)
    assert len(told) > 2
    rows = rows_of(sensors(5000), 5000)
    found = latest(read(tmp_path / "out"), "id")
    assert {key: row["n"] for key, row in found.items()} == Counter(row["id"] for row in rows)
    most: dict[int, float] = defaultdict(lambda: float("-inf"))
    for row in rows:
        most[row["id"]] = max(most[row["id"]], row["value"])
    assert {key: row["most"] for key, row in found.items()} == most


def test_what_the_batch_before_wrote_is_not_fetched_whichever_worker_has_the_task(run: Run) -> None:
    p = tg.Pipeline("count")
    counted = p.source(sensors(8000)).key_by("id").aggregate(n=tg.agg.count())
    counted.sink(tg.sinks.Discard())
    _, told = run(p, engine__parallelism=4, admission__min_rows=1000, admission__max_rows=1000)
    assert [batch.state_rows for batch in told] == [50] * 8
    first, *later = [batch.state_wire for batch in told]
    assert len(set(later)) == 1, "what is staged, and nothing else"
    assert later[0] < first


def test_it_goes_on_where_it_stopped(run: Run, tmp_path: Path) -> None:
    """With another number of nodes, of partitions and another backend."""
    for rows, nodes, backend in ((1000, 2, "columnar"), (3000, 3, "memory"), (5000, 1, "columnar")):
        p = tg.Pipeline("count")
        counted = p.source(sensors(rows)).key_by("id").aggregate(n=tg.agg.count())
        counted.sink(tg.sinks.Files(tmp_path / "out"))
        run(p, state__nodes=nodes, state__backend=backend, engine__parallelism=nodes + 1)
    found = latest(read(tmp_path / "out"), "id")
    wanted = Counter(row["id"] for row in rows_of(sensors(5000), 5000))
    assert {key: row["n"] for key, row in found.items()} == wanted


def test_steps_with_one_key_share_a_stage(run: Run, tmp_path: Path, spark: SparkSession) -> None:
    """One shuffle for both, and the results of each: also with nodes and partitions that come and go."""
    stages: set[int] = set()

    def look(_: tg.BatchProgress) -> None:
        tracker = spark.sparkContext.statusTracker()
        (query,) = spark.streams.active
        for job in tracker.getJobIdsForGroup(str(query.runId)):
            info = tracker.getJobInfo(job)
            assert info is not None
            stages.add(len(info.stageIds))

    for rows, nodes, parallelism in ((2000, 2, 4), (5000, 3, 3)):
        p = tg.Pipeline("shared")
        firsts = p.source(sensors(rows)).key_by("id").deduplicate(within="4 s")
        counts = firsts.filter("value > 0").key_by("id").aggregate(n=tg.agg.count())
        counts.sink(tg.sinks.Files(tmp_path / "out"))
        run(p, listeners=[look], state__nodes=nodes, engine__parallelism=parallelism)
    assert stages == {2}
    last: dict[int, datetime] = {}
    wanted: Counter[int] = Counter()
    for row in sorted(rows_of(sensors(5000), 5000), key=lambda row: row["timestamp"]):
        if row["id"] not in last or row["timestamp"] - last[row["id"]] >= timedelta(seconds=4):
            last[row["id"]] = row["timestamp"]
            wanted[row["id"]] += row["value"] > 0
    found = latest(read(tmp_path / "out"), "id")
    assert {key: row["n"] for key, row in found.items()} == wanted


def test_windows_leave_once_when_the_watermark_has_passed(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("windows")
    counts = p.source(sensors(5000)).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    counts.sink(tg.sinks.Files(tmp_path / "out"))
    _, told = run(p)
    rows = read(tmp_path / "out")
    found = {(row["id"], row["window_start"]): row["n"] for row in rows}
    assert len(found) == len(rows)
    held = told[-1].watermark
    assert held is not None
    wanted = windows(rows_of(sensors(5000), 5000), 4)
    assert found == {key: n for key, n in wanted.items() if key[1] + timedelta(seconds=4) <= held}
    assert found


def test_windows_after_windows(run: Run, tmp_path: Path) -> None:
    """The second step sees the windows of the first as events of their time: none is late."""
    p = tg.Pipeline("chained")
    counts = p.source(sensors(5000)).key_by("id").window(tg.tumbling("2 s")).aggregate(n=tg.agg.count())
    wider = counts.with_column("all", "'x'").key_by("all").window(tg.tumbling("4 s"))
    wider.aggregate(n=tg.agg.sum("n")).sink(tg.sinks.Files(tmp_path / "out"))
    _, told = run(p)
    found = {row["window_start"]: row["n"] for row in read(tmp_path / "out")}
    wanted: Counter[datetime] = Counter()
    for (_, start), n in windows(rows_of(sensors(5000), 5000), 4).items():
        wanted[start] += n
    assert found
    assert found == {start: wanted[start] for start in found}
    assert sum(batch.late for batch in told) == 0


def test_a_window_join_of_two_sources(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("join")
    left = p.source(sensors(2000, seed=1))
    right = p.source(sensors(2000, seed=2)).select("id", "timestamp", other="value")
    joined = left.window_join(right, on="id", window=tg.tumbling("4 s"))
    joined.select("id", "window_start", "value", "other").sink(tg.sinks.Files(tmp_path / "out"))
    _, told = run(p)
    held = told[-1].watermark
    assert held is not None
    sides: list[dict[Any, list[float]]] = [defaultdict(list), defaultdict(list)]
    for side, seed in enumerate((1, 2)):
        for row in rows_of(sensors(2000, seed=seed), 2000):
            passed = (row["timestamp"] - START).total_seconds()
            sides[side][row["id"], START + timedelta(seconds=passed // 4 * 4)].append(row["value"])
    wanted = Counter(
        (*key, a, b)
        for key, values in sides[0].items()
        if key[1] + timedelta(seconds=4) <= held
        for a in values
        for b in sides[1].get(key, [])
    )
    found = Counter(
        (row["id"], row["window_start"], row["value"], row["other"]) for row in read(tmp_path / "out")
    )
    assert wanted
    assert found == wanted


def lines(folder: Path, batches: list[list[dict[str, Any]]]) -> tg.sources.Files:
    """One file per batch."""
    folder.mkdir()
    for number, rows in enumerate(batches):
        file = folder / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (number + 1, number + 1))  # Spark takes the oldest file first.
    return tg.sources.Files(
        folder, format="json", schema="id string, at timestamp, v int", event_time="at", grace="0 s"
    )


def moment(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def test_late_rows_are_counted_and_go_to_a_stream_of_their_own(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("late")
    batches = [
        [{"id": "a", "at": moment(1), "v": 1}],
        [{"id": "a", "at": moment(9), "v": 2}],
        [{"id": "a", "at": moment(9.5), "v": 3}],
        [{"id": "a", "at": moment(2), "v": 4}, {"id": "b", "at": moment(10), "v": 5}],
    ]
    stream = p.source(lines(tmp_path / "in", batches))
    counts = stream.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    counts.sink(tg.sinks.Files(tmp_path / "out"))
    counts.late().sink(tg.sinks.Files(tmp_path / "late"))
    _, told = run(p, admission__initial_rows=1, admission__max_rows=1, admission__min_rows=1)
    assert [batch.late for batch in told] == [0, 0, 0, 1, 0]
    assert [row["v"] for row in read(tmp_path / "late")] == [4]
    found = sorted((row["id"], row["n"]) for row in read(tmp_path / "out"))
    assert found == [("a", 1), ("a", 2), ("b", 1)], "what is open at the end is closed"


def test_windows_after_an_interval_join_miss_no_pair(run: Run, tmp_path: Path) -> None:
    """Pairs leave up to `after` behind the watermark, and happened at the later of both events."""
    p = tg.Pipeline("pairs")
    batches = [
        [{"id": "a", "at": moment(1), "v": 1}, {"id": "a", "at": moment(2), "v": 2}],
        [{"id": "x", "at": moment(8), "v": 3}],
        [{"id": "x", "at": moment(12), "v": 4}],
        [{"id": "x", "at": moment(30), "v": 5}],
    ]
    rows = p.source(lines(tmp_path / "in", batches))
    pairs = rows.interval_join(rows.select("id", other="at"), on="id", after="10 s")
    counts = pairs.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    counts.sink(tg.sinks.Files(tmp_path / "out"))
    counts.late().sink(tg.sinks.Files(tmp_path / "late"))
    _, told = run(p, admission__initial_rows=1, admission__max_rows=1, admission__min_rows=1)
    assert len(told) == len(batches) + 1, "the last one closes what is open"
    found = sorted(
        (row["id"], (row["window_start"] - START).total_seconds(), row["n"]) for row in read(tmp_path / "out")
    )
    assert found == [("a", 0, 3), ("x", 8, 1), ("x", 12, 2), ("x", 28, 1)]
    assert sum(batch.late for batch in told) == 0
    assert read(tmp_path / "late") == []


def test_where_event_time_is_lost_is_told_with_its_line(run: Run) -> None:
    p = tg.Pipeline("lost")
    plain = p.source(sensors(10)).select("id", "value")
    plain.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    with pytest.raises(tg.PipelineError, match=r"the rows of select-1 \(.*test_keyed\.py:\d+\) have none"):
        run(p)


def visits(rows: pa.Table, state: pa.Table, time: object) -> tuple[pa.Table, pa.Table]:
    """How often each sensor was seen, kept by the user's own function."""
    new = rows.group_by("id").aggregate([("id", "count")]).rename_columns(["id", "visits"])
    both = pa.concat_tables([new.cast(state.schema), state])
    total = both.group_by("id").aggregate([("visits", "sum")]).rename_columns(["id", "visits"])
    return total, total


def test_a_process_of_ones_own(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("process")
    seen = (
        p.source(sensors(3000))
        .key_by("id")
        .process(visits, state_schema="visits bigint", output_schema="id bigint, visits bigint")
    )
    seen.sink(tg.sinks.Files(tmp_path / "out"))
    run(p)
    found = {key: row["visits"] for key, row in latest(read(tmp_path / "out"), "id").items()}
    assert found == Counter(row["id"] for row in rows_of(sensors(3000), 3000))


def test_two_steps_with_state_behind_one_another_and_a_union(run: Run, tmp_path: Path) -> None:
    """Spark numbers the partitions of a union anew; every part of the state is staged all the same."""
    p = tg.Pipeline("union")
    stream = p.source(sensors(3000))
    first = stream.key_by("id").deduplicate().select("id")
    second = stream.with_column("id", "id + 1000").key_by("id").deduplicate().select("id")
    both = first.union(second)
    both.key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(tmp_path / "out"))
    both.sink(tg.sinks.Files(tmp_path / "all"))
    run(p, engine__parallelism=3)
    ids = {row["id"] for row in rows_of(sensors(3000), 3000)}
    wanted = sorted(ids | {number + 1000 for number in ids})
    assert sorted(row["id"] for row in read(tmp_path / "all")) == wanted
    assert latest(read(tmp_path / "out"), "id") == {number: {"id": number, "n": 1} for number in wanted}


def test_a_function_that_reads_only_some_rows(run: Run) -> None:
    """The state is right even where the sink does not look at all rows."""
    seen: list[int] = []
    p = tg.Pipeline("some")
    counted = p.source(sensors(3000)).key_by("id").aggregate(n=tg.agg.count())
    counted.sink(tg.sinks.ForEachBatch(lambda rows, _: seen.append(len(rows.take(1)))))
    _, told = run(p)
    assert seen == [1] * len(told)
    assert sum(batch.state_rows for batch in told) > 50


def test_files_that_no_batch_needs_are_deleted(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("garbage")
    p.source(sensors(5000)).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    _, told = run(p, state__retention=2, admission__max_rows=200, admission__initial_rows=200)
    checkpoint = tmp_path / "checkpoint"
    ledger = Ledger(checkpoint / "ledger")
    assert ledger.last is not None
    assert len(told) > 15
    assert len(list(ledger.entries())) <= 4
    needed = {run.name for entry in ledger.entries() if entry.state for run in entry.state.runs}
    there = {path.name for path in (checkpoint / "state").iterdir() if not path.name.startswith(".")}
    assert ledger.last.state is not None
    assert {run.name for run in ledger.last.state.runs} <= there
    assert len(there - needed) <= 2 * 2


def changed(tmp_path: Path) -> Iterator[tuple[tg.Pipeline, str]]:
    for aggregates, key, message in (
        ({"n": tg.agg.count()}, "value", "aggregate-1 has changed .* had id for 'key columns' and now has"),
        (
            {"m": tg.agg.count()},
            "id",
            r"aggregate-1 has changed .* had count\(\) for 'n' and now has nothing",
        ),
        ({"n": tg.agg.sum("value")}, "id", r"aggregate-1 has changed .* had count\(\) for 'n'"),
    ):
        p = tg.Pipeline("changed")
        p.source(sensors(2000)).key_by(key).aggregate(**aggregates).sink(tg.sinks.Discard())
        yield p, message


def test_a_changed_step_is_refused_and_an_added_aggregate_is_not(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("changed")
    p.source(sensors(1000)).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    run(p)
    for other, message in changed(tmp_path):
        with pytest.raises(CheckpointError, match=message):
            run(other)
    more = tg.Pipeline("changed")
    counted = more.source(sensors(2000)).key_by("id").aggregate(n=tg.agg.count(), most=tg.agg.max("value"))
    counted.sink(tg.sinks.Files(tmp_path / "out"))
    run(more)
    rows = rows_of(sensors(2000), 2000)
    found = latest(read(tmp_path / "out"), "id")
    assert {key: row["n"] for key, row in found.items()} == {
        key: n for key, n in Counter(row["id"] for row in rows).items() if key in found
    }
    since = pa.Table.from_pylist(rows[1000:])
    wanted = since.group_by("id").aggregate([("value", "max")])
    assert {key: row["most"] for key, row in found.items()} == dict(
        zip(wanted["id"].to_pylist(), wanted["value_max"].to_pylist(), strict=True)
    )


def test_a_step_that_means_something_else_is_refused_until_its_state_is_dropped(
    run: Run, tmp_path: Path
) -> None:
    p = tg.Pipeline("meaning")
    p.source(sensors(1000)).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count()).sink(
        tg.sinks.Discard()
    )
    run(p)
    other = tg.Pipeline("meaning")
    other.source(sensors(2000)).key_by("id").window(tg.tumbling("5 s")).aggregate(n=tg.agg.count()).sink(
        tg.sinks.Discard()
    )
    with pytest.raises(CheckpointError, match=r"had tumbling 4 s for 'window' and now has tumbling 5 s"):
        run(other)
    drop(tmp_path / "checkpoint", "aggregate-1")
    summary, _ = run(other)
    assert summary.rows_in == 1000


def test_a_named_step_keeps_its_state_when_another_is_declared_before_it(run: Run, tmp_path: Path) -> None:
    for rows in (1000, 2000):
        p = tg.Pipeline("named")
        stream = p.source(sensors(rows))
        if rows == 2000:
            added = stream.key_by("id").named("added").aggregate(n=tg.agg.count())
            added.sink(tg.sinks.Discard())
        counted = stream.key_by("id").named("counted").aggregate(n=tg.agg.count())
        counted.sink(tg.sinks.Files(tmp_path / "out"))
        run(p)
    found = {key: row["n"] for key, row in latest(read(tmp_path / "out"), "id").items()}
    assert found == Counter(row["id"] for row in rows_of(sensors(2000), 2000))


def test_the_watermark_stays_where_it_was_when_the_grace_grows(run: Run, tmp_path: Path) -> None:
    """A window that has left does not come back to life."""
    watermarks = []
    for rows, grace in ((2000, "0 s"), (2500, "60 s")):
        source = replace(sensors(rows), grace=grace)
        p = tg.Pipeline("grace")
        counts = p.source(source).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
        counts.sink(tg.sinks.Files(tmp_path / "out"))
        _, told = run(p)
        watermarks += [batch.watermark for batch in told if batch.watermark is not None]
    assert watermarks == sorted(watermarks)
    rows_out = read(tmp_path / "out")
    assert len({(row["id"], row["window_start"]) for row in rows_out}) == len(rows_out) > 0


def test_without_durability_nothing_can_be_gone_on_from(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("lost")
    p.source(sensors(1000)).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    run(p, state__durable=False)
    with pytest.raises(CheckpointError, match=r"state\.durable off"):
        run(p)


def test_a_wrong_key_is_told_with_its_line(run: Run) -> None:
    p = tg.Pipeline("wrong")
    p.source(sensors(10)).key_by("nothing").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    with pytest.raises(tg.PipelineError, match=r"test_keyed\.py:\d+.*'nothing'"):
        run(p)


def test_updates_are_not_counted_as_rows() -> None:
    p = tg.Pipeline("twice")
    counted = p.source(sensors(10)).key_by("id").aggregate(n=tg.agg.count())
    counted.key_by("n").aggregate(keys=tg.agg.count()).sink(tg.sinks.Discard())
    with pytest.raises(tg.PipelineError, match="needs final rows"):
        p.plan()


def test_all_rows_are_there(run: Run, tmp_path: Path) -> None:
    """Keys of every kind: text, bytes, null, composite; the counts add up."""
    p = tg.Pipeline("kinds")
    stream = p.source(sensors(2000)).select(
        text="case when id % 7 = 0 then null else concat('sensor ', id) end",
        raw="cast(cast(id as string) as binary)",
        half="if(id % 2 = 0, id, null)",
    )
    counted = stream.key_by("text", "raw", "half").aggregate(n=tg.agg.count())
    counted.sink(tg.sinks.Files(tmp_path / "out"))
    run(p)
    found = {(row["text"], row["raw"], row["half"]): row["n"] for row in read(tmp_path / "out")}
    wanted = Counter(
        (
            None if row["id"] % 7 == 0 else f"sensor {row['id']}",
            str(row["id"]).encode(),
            row["id"] if row["id"] % 2 == 0 else None,
        )
        for row in rows_of(sensors(2000), 2000)
    )
    assert found == wanted
    assert pc.sum(pa.array(found.values())).as_py() == 2000
