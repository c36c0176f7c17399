"""Pipelines on Spark: what comes out, what is told, what survives."""

from __future__ import annotations

import json
import shutil
import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tests.conftest import Run
from tidegate import config
from tidegate.errors import BatchError, CheckpointError, FencedError, ListenerError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.run.checkpoint import Checkpoint
from tidegate.run.lock import locked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 5_000


def sensors(rows: int = ROWS, seed: int = 0) -> tg.sources.Sensors:
    return tg.sources.Sensors(sensors=100, rate=None, rows=rows, seed=seed, start="2024-01-01T00:00:00")


def expected(rows: int = ROWS, seed: int = 0) -> pa.Table:
    source = sensors(rows, seed)
    assert source.first_micros is not None
    return pa.Table.from_batches([source.batch(0, rows, start=source.first_micros)])


def same(left: pa.Table, right: pa.Table) -> bool:
    names = right.column_names
    order = [(name, "ascending") for name in names]
    return bool(left.select(names).sort_by(order).equals(right.sort_by(order)))


def test_every_row_comes_out_once_in_batches_of_at_most_the_limit(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("all")
    p.source(sensors()).sink(tg.sinks.Files(tmp_path / "out"))
    summary, told = run(p, admission__max_rows=1500)
    assert same(tg.read(tmp_path / "out"), expected())
    assert (summary.rows_in, summary.rows_out, summary.stopped_by) == (ROWS, ROWS, "done")
    assert max(batch.rows_in for batch in told) <= 1500
    assert told[0].rows_in == 1000


def test_a_limit_counts_for_the_very_next_batch_when_rows_wait(run: Run) -> None:
    p = tg.Pipeline("prompt")
    p.source(sensors(5_000)).sink(tg.sinks.Discard())
    _, told = run(p, admission__initial_rows=1000, engine__interval="1 ms")
    assert told[0].rows_in == 1000
    assert told[1].rows_in <= 2000, "the first one only tells how long the second takes at most"
    assert told[2].rows_in > 1000


def test_progress_tells_the_batch(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("told")
    p.source(sensors()).filter("value > 20").sink(tg.sinks.Files(tmp_path / "out"))
    _, told = run(p)
    assert [batch.batch_id for batch in told] == list(range(len(told)))
    assert sum(batch.rows_out for batch in told) == tg.read(tmp_path / "out").num_rows
    first, last = told[0], told[-1]
    assert first.cut["source-1"]["end"]["offset"] == 1000
    assert last.cut["source-1"]["start"] == told[-2].cut["source-1"]["end"]
    assert last.lag == 0
    assert told[0].lag == ROWS - 1000
    assert {"offsets", "planning", "wal", "write", "ledger", "publish", "commit"} == set(first.phases)
    assert first.latency_p50 is not None
    assert first.latency_p99 is not None
    assert first.latency_p99 >= first.latency_p50
    json.dumps(last.as_json())


def test_a_batch_takes_few_calls_into_java(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one holds up the batch: Python and Java have the same cores."""
    from py4j.java_gateway import GatewayClient

    calls = Counter[str]()
    send = GatewayClient.send_command

    def counted(self: GatewayClient, command: str, *more: bool) -> str:
        calls["all"] += 1
        answer: str = send(self, command, *more)
        return answer

    p = tg.Pipeline("calls")
    p.source(sensors(rows=200_000)).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    seen: list[int] = []
    monkeypatch.setattr(GatewayClient, "send_command", counted)
    run(p, listeners=[lambda _: seen.append(calls["all"])], admission__max_rows=5_000)
    each = [later - before for before, later in pairwise(seen)]
    assert len(each) > 30
    assert statistics.median(each) < 120


def test_the_watermark_follows_what_earlier_batches_saw(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("late")
    p.source(sensors()).sink(tg.sinks.Discard())
    _, told = run(p)
    assert told[0].watermark is None
    times = expected()["timestamp"]
    for batch in told[1:]:
        newest = times[batch.cut["source-1"]["start"]["offset"] - 1].as_py()
        assert batch.watermark is not None
        assert (newest - batch.watermark).total_seconds() == pytest.approx(2.0)


def test_stateless_steps(run: Run, tmp_path: Path) -> None:
    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {"twice": pc.multiply(batch["value"], 2), "id": batch["id"].cast(pa.int32()), "junk": batch["id"]}
        )

    p = tg.Pipeline("steps")
    rows = p.source(sensors())
    kept = rows.filter(lambda df: df.value > 20).with_column("kelvin", "value + 273.15").drop("timestamp")
    doubled = kept.select("id", value="kelvin - 273.15").map_arrow(double, "id bigint, twice double")
    doubled.flat_map("copy", "array(1, 2)").sink(tg.sinks.Files(tmp_path / "out"))
    run(p)
    out = tg.read(tmp_path / "out")
    source = expected()
    wanted = source.filter(pc.greater(source["value"], 20))
    assert out.schema.names == ["id", "twice", "copy"]
    assert out.schema.field("id").type == pa.int64()
    assert out.num_rows == 2 * wanted.num_rows
    assert pc.sum(out["twice"]).as_py() == pytest.approx(4 * pc.sum(wanted["value"]).as_py())


def test_branches_part_the_rows(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("branches")
    hot, warm, rest = (
        p.source(sensors())
        .with_column("value", "if(id = 7, null, value)")
        .branch("value > 25", lambda df: df.value > 15)
    )
    for name, stream in {"hot": hot, "warm": warm, "rest": rest}.items():
        stream.sink(tg.sinks.Files(tmp_path / name))
    summary, _ = run(p)
    parts = {name: tg.read(tmp_path / name) for name in ("hot", "warm", "rest")}
    assert summary.rows_in == ROWS
    assert sum(part.num_rows for part in parts.values()) == ROWS
    assert pc.min(parts["hot"]["value"]).as_py() > 25
    assert pc.max(parts["warm"]["value"]).as_py() <= 25
    assert parts["rest"]["value"].null_count == 50


def test_a_stream_united_with_itself(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("twice")
    rows = p.source(sensors(1_000))
    rows.union(rows).sink(tg.sinks.Files(tmp_path / "out"))
    summary, _ = run(p)
    assert (summary.rows_in, summary.rows_out) == (1_000, 2_000)
    assert same(tg.read(tmp_path / "out"), pa.concat_tables([expected(1_000)] * 2))


def test_a_union_of_sources(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("union")
    one, other = p.source(sensors(seed=1)), p.source(sensors(rows=2_000, seed=2))
    one.union(other.filter("value > 20")).sink(tg.sinks.Files(tmp_path / "out"))
    summary, told = run(p)
    second = expected(2_000, seed=2)
    wanted = pa.concat_tables([expected(seed=1), second.filter(pc.greater(second["value"], 20))])
    assert same(tg.read(tmp_path / "out"), wanted)
    assert summary.rows_in == ROWS + 2_000
    assert set(told[0].cut) == {"source-1", "source-2"}


def test_a_restart_goes_on_where_the_run_ended(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def pipeline() -> tg.Pipeline:
        p = tg.Pipeline("again")
        p.source(tg.sources.Files(source, format="json", schema="id bigint")).sink(
            tg.sinks.Files(tmp_path / "out")
        )
        return p

    for number in range(3):
        (source / f"{number}.json").write_text(f'{{"id": {number}}}\n')
        summary, _ = run(pipeline())
        assert summary.rows_in == 1
        assert sorted(tg.read(tmp_path / "out")["id"].to_pylist()) == list(range(number + 1))


def test_files_that_wait_are_told_with_their_size(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(8):
        (source / f"{number}.json").write_text('{"id": 7}\n')
    p = tg.Pipeline("waiting")
    p.source(tg.sources.Files(source, schema="id bigint")).sink(tg.sinks.Discard())
    summary, told = run(p, admission__initial_rows=1, admission__max_rows=1, admission__min_rows=1)
    files, size = told[0].waiting_files, len('{"id": 7}\n')
    assert files is not None
    assert 0 < files < 8
    assert told[0].waiting_bytes == files * size
    assert (told[-1].waiting_files, summary.waiting_files) == (0, 0)


def test_unreadable_rows_are_kept_with_the_reason_and_counted(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    lines = ['{"id": 1}', "not json", '{"id": "x"}', '{"id": 2}']
    (source / "a.json").write_text("\n".join(lines) + "\n")
    p = tg.Pipeline("letters")
    p.source(tg.sources.Files(source, format="json", schema="id bigint")).sink(
        tg.sinks.Files(tmp_path / "out")
    )
    summary, _ = run(p)
    assert sorted(tg.read(tmp_path / "out")["id"].to_pylist()) == [1, 2]
    assert (summary.rows_in, summary.rows_out, summary.dead_letters) == (4, 2, 2)
    dead = tg.read(tmp_path / "checkpoint" / "dead-letters" / "source-1")
    assert Counter(dead["raw"].to_pylist()) == Counter(lines[1:3])
    assert all(dead["reason"].to_pylist())


def test_two_fallible_sources_and_two_sinks(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("both")
    streams = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.csv").write_text(f"1,{name}\n2,{name}\nbroken,{name}\n")
        source = tg.sources.Files(tmp_path / name, format="csv", schema="id bigint, name string")
        streams.append(p.source(source))
    both = streams[0].union(streams[1])
    both.sink(tg.sinks.Files(tmp_path / "all"))
    both.filter("id = 1").sink(tg.sinks.Files(tmp_path / "ones"))
    summary, _ = run(p)
    assert sorted(zip(*tg.read(tmp_path / "all").to_pydict().values(), strict=True)) == [
        (1, "a"), (1, "b"), (2, "a"), (2, "b"),
    ]  # fmt: skip
    assert tg.read(tmp_path / "ones").num_rows == 2
    assert (summary.rows_in, summary.dead_letters) == (6, 2)


def test_a_failing_sink_is_tried_again(run: Run) -> None:
    calls: list[int] = []

    def flaky(rows: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        rows.collect()
        if len(calls) < 3:
            raise OSError("the disk is full")

    p = tg.Pipeline("flaky")
    p.source(sensors(500)).sink(tg.sinks.ForEachBatch(flaky))
    summary, told = run(p)
    assert calls == [0, 0, 0]
    assert told[0].tries == 3
    assert summary.rows_out == 500


def test_rows_are_counted_once_however_often_a_batch_is_tried(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": 1}\n{"id": 2}\nbroken\n')
    tries: list[int] = []

    def flaky(rows: DataFrame, batch_id: int) -> None:
        tries.append(rows.count())
        if len(tries) < 3:
            raise OSError("not yet")

    p = tg.Pipeline("counted")
    p.source(tg.sources.Files(tmp_path / "in", schema="id bigint")).sink(tg.sinks.ForEachBatch(flaky))
    summary, _ = run(p)
    assert tries == [2, 2, 2]
    assert (summary.rows_in, summary.rows_out, summary.dead_letters) == (3, 2, 1)


def test_after_the_last_try_the_pipeline_stops_and_can_go_on(run: Run, tmp_path: Path) -> None:
    broken = True
    seen: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        if broken and batch_id == 2:
            raise OSError("the disk is full")
        seen.extend(row.value for row in rows.collect())

    def pipeline() -> tg.Pipeline:
        p = tg.Pipeline("stops")
        p.source(sensors(4_000)).sink(tg.sinks.ForEachBatch(sink))
        return p

    with pytest.raises(BatchError, match=r"sink-1 \(ForEachBatch .*the disk is full") as caught:
        run(pipeline(), engine__tries=2, admission__max_rows=1000)
    assert (caught.value.batch_id, caught.value.tries) == (2, 2)
    broken = False
    run(pipeline(), admission__max_rows=1000)
    assert sorted(seen) == sorted(expected(4_000)["value"].to_pylist())


def test_a_failing_function_is_told_with_its_step_and_line(run: Run) -> None:
    def divide(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError("by nothing")

    p = tg.Pipeline("divide")
    p.source(sensors(10)).map_arrow(divide, "id bigint").sink(tg.sinks.Discard())
    raised = divide.__code__.co_firstlineno + 1
    place = rf"map_arrow-1 \(declared at .*test_runner.py:\d+\), in line {raised}"
    with pytest.raises(BatchError, match=f"^batch 0: {place}: ZeroDivisionError: by nothing. Corr") as caught:
        run(p)
    assert caught.value.tries == 1  # another one would fail, too


def test_a_function_that_another_try_may_help_is_tried_again(run: Run, tmp_path: Path) -> None:
    def ask(batch: pa.RecordBatch) -> pa.RecordBatch:
        with (tmp_path / "asked").open("a") as asked:
            asked.write(".")
        if (tmp_path / "asked").stat().st_size < 3:  # Spark itself tries a task twice
            raise ConnectionError("the service is away")
        return batch.select(["id"])

    p = tg.Pipeline("ask")
    p.source(sensors(10)).map_arrow(ask, "id bigint").sink(tg.sinks.Discard())
    summary, told = run(p, engine__parallelism=1)
    assert (summary.rows_out, told[0].tries) == (10, 2)


def test_an_expression_that_meets_a_wrong_value_is_told_with_its_step(run: Run) -> None:
    p = tg.Pipeline("cast")
    stream = p.source(sensors(10)).with_column("name", "concat('s', id)").filter("id >= 0")
    stream.with_column("number", "1 + cast(name as int)").sink(tg.sinks.Discard())
    place = r"^batch 0: with_column-2 \(declared at .*test_runner.py:\d+\): The value 's\d+'"
    with pytest.raises(BatchError, match=place) as caught:
        run(p)
    assert caught.value.tries == 1


def test_dead_letters_do_not_depend_on_what_a_function_reads(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": 1}\nbroken\n{"id": 2}\nbroken too\n')
    p = tg.Pipeline("lazy")
    source = tg.sources.Files(tmp_path / "in", schema="id bigint")
    p.source(source).sink(tg.sinks.ForEachBatch(lambda rows, batch_id: None))
    summary, _ = run(p)
    assert (summary.rows_in, summary.dead_letters) == (4, 2)
    assert summary.dead_letters_path is not None
    assert tg.read(Path(summary.dead_letters_path) / "source-1").num_rows == 2


def test_sources_keep_their_offsets_when_the_steps_after_them_move(run: Run, tmp_path: Path) -> None:
    """Spark keeps offsets by number: the order of the steps behind the sources must not change it."""

    def pipeline(rows: int, *, swapped: bool) -> tg.Pipeline:
        p = tg.Pipeline("moved")
        one = p.source(sensors(rows, seed=1))
        other = p.source(sensors(2 * rows, seed=2))
        steps = [("one", one, "id >= 0"), ("other", other, "id >= 0")]
        for name, stream, condition in reversed(steps) if swapped else steps:
            stream.filter(condition).sink(tg.sinks.Files(tmp_path / name))
        return p

    run(pipeline(1_000, swapped=False))
    run(pipeline(2_000, swapped=True))
    assert same(tg.read(tmp_path / "one"), expected(2_000, seed=1))
    assert same(tg.read(tmp_path / "other"), expected(4_000, seed=2))


def test_a_sink_that_is_gone_while_rows_wait_for_it_is_missed(run: Run, tmp_path: Path) -> None:
    def pipeline(place: str) -> tg.Pipeline:
        p = tg.Pipeline("gone")
        p.source(sensors(500)).sink(tg.sinks.Files(tmp_path / place))
        return p

    run(pipeline("here"))
    # As if the driver had died between the commit and the report to Spark.
    (tmp_path / "checkpoint/spark/commits/0").unlink()
    (tmp_path / "checkpoint/spark/commits/.0.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="no longer in the pipeline"):
        run(pipeline("there"))


def test_a_pipeline_that_cannot_start_disturbs_nobody(run: Run, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "checkpoint/ledger")
    ledger.take_over()
    p = tg.Pipeline("typo")
    p.source(sensors(10)).filter("valu > 1").sink(tg.sinks.Discard())
    with pytest.raises(tg.PipelineError, match="valu"):
        run(p)
    ledger.append(Entry(0, ledger.generation, {}, {}, {}))


def test_a_driver_without_rows_ends_when_another_one_takes_over(spark: SparkSession, tmp_path: Path) -> None:
    p = tg.Pipeline("idle")
    p.source(sensors(10)).sink(tg.sinks.Discard())
    settings = config.load(environ={}, overrides={"engine.checkpoint": str(tmp_path)})
    committed = Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            p.run, config=settings, listeners=[lambda _: committed.set()], duration="30 seconds"
        )
        assert committed.wait(60)
        with locked(Checkpoint.at(tmp_path), take_over=True) as lock:
            lock.claim()
            Ledger(tmp_path / "ledger").take_over()
            with pytest.raises(FencedError, match="another driver has taken over"):
                running.result()


def test_a_listener_that_raises_ends_the_run_after_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    def grumble(progress: tg.BatchProgress) -> None:
        raise KeyError("no such metric")

    p = tg.Pipeline("grumble")
    p.source(sensors()).sink(tg.sinks.Files(tmp_path / "out"))
    overrides = {"engine.checkpoint": str(tmp_path / "checkpoint"), "engine.interval": "100 ms"}
    with pytest.raises(ListenerError, match=r"grumble failed after batch 0.*no such metric"):
        p.run(config=config.load(environ={}, overrides=overrides), listeners=[grumble], until_done=True)
    assert tg.read(tmp_path / "out").num_rows >= 1_000


def test_the_session_of_the_user_lives_on_and_keeps_its_settings(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    p = tg.Pipeline("thread")
    p.source(sensors(100)).sink(tg.sinks.Files(tmp_path / "out"))
    settings = config.load(environ={}, overrides={"engine.checkpoint": str(tmp_path / "checkpoint")})
    thread = Thread(target=lambda: p.run(config=settings, listeners=[], until_done=True))
    thread.start()
    thread.join()
    try:
        assert tg.read(tmp_path / "out").num_rows == 100
        assert spark.range(3).count() == 3
        assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_checkpoint_that_is_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    p = tg.Pipeline("file")
    p.source(sensors(10)).sink(tg.sinks.Discard())
    with pytest.raises(CheckpointError, match="cannot use the checkpoint"):
        run(p, engine__checkpoint=str(tmp_path / "file"))


def test_a_checkpoint_of_another_pipeline_is_refused(run: Run) -> None:
    p = tg.Pipeline("mine")
    p.source(sensors(10)).sink(tg.sinks.Discard())
    run(p)
    other = tg.Pipeline("yours")
    other.source(sensors(10)).sink(tg.sinks.Discard())
    with pytest.raises(CheckpointError, match=r"'mine'.*'yours'"):
        run(other)


def test_no_row_is_lost_when_sparks_own_checkpoint_is_deleted_restored_or_torn(
    run: Run, tmp_path: Path
) -> None:
    spark, copy = tmp_path / "checkpoint/spark", tmp_path / "copy"

    def upto(rows: int) -> None:
        p = tg.Pipeline("kept")
        p.source(sensors(rows)).sink(tg.sinks.Files(tmp_path / "out"))
        run(p, admission__max_rows=500, admission__initial_rows=500)

    upto(1000)
    shutil.copytree(spark, copy)
    shutil.rmtree(spark)
    upto(2000)
    shutil.rmtree(spark)
    copy.rename(spark)
    upto(3000)
    for kind in ("offsets", "commits"):
        max((spark / kind).glob("[0-9]*"), key=lambda path: int(path.name)).write_bytes(b"")
    (spark / "metadata").write_bytes(b"")
    upto(4000)
    assert same(tg.read(tmp_path / "out"), expected(4000))
    # What the ledger has lost nobody can give back: that is what is said, not that the output is to blame.
    newest = max((tmp_path / "checkpoint/ledger").glob("*.json"))
    newest.unlink()
    with pytest.raises(CheckpointError, match="newest records of the ledger are missing"):
        upto(4000)
    assert not newest.exists(), "nothing takes its place, so that it can be restored"


def test_a_file_source_without_its_list_of_files_is_refused(run: Run, tmp_path: Path) -> None:
    spark, copy = tmp_path / "checkpoint/spark", tmp_path / "copy"
    p = tg.Pipeline("files")
    source = tg.sources.Files(tmp_path / "in", format="json", schema="id bigint")
    p.source(source).sink(tg.sinks.Files(tmp_path / "out"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text('{"id": 0}\n')
    run(p)
    (tmp_path / "in/1.json").write_text('{"id": 1}\n')
    run(p)
    shutil.copytree(spark, copy)
    shutil.rmtree(spark)
    with pytest.raises(CheckpointError, match="list of files"):
        run(p)
    # With the list, all else can be written again.
    shutil.copytree(copy / "sources", spark / "sources")
    (tmp_path / "in/2.json").write_text('{"id": 2}\n')
    run(p)
    assert sorted(tg.read(tmp_path / "out")["id"].to_pylist()) == [0, 1, 2]
