"""The tools for a checkpoint's state, on what a real run has left."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import tidegate as tg
from tidegate import config
from tidegate.batch.garbage import Garbage
from tidegate.cli.main import app
from tidegate.errors import CheckpointError, StateError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.run.checkpoint import Checkpoint, open_log
from tidegate.run.inspection import Inspection
from tidegate.run.savepoint import save
from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.shard import Shard
from tidegate.state.table.table import NEVER, StateTable
from tidegate.storage.local import Local
from tidegate.storage.remote import Remote
from tidegate.testing import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 1500
START = datetime(2024, 1, 1, tzinfo=UTC)
SOURCE = tg.sources.Sensors(
    sensors=50, rate=tg.sources.Constant(100), rows=ROWS, start=START.isoformat(), seed=1
)
TABLE, WINDOWS = "aggregate-1", "aggregate-2"


def name_of(number: int) -> str | None:
    return None if number % 10 == 0 else f"n{number % 10}"


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with two tables: counts by two key columns, one of them null at times, and windows."""
    folder = tmp_path_factory.mktemp("state") / "checkpoint"
    p = tg.Pipeline("tools")
    rows = p.source(SOURCE).with_column("name", "if(id % 10 = 0, null, concat('n', id % 10))")
    rows.key_by("id", "name").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    rows.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    settings = {
        "engine.interval": "100 ms",
        "engine.checkpoint": str(folder),
        "engine.close_at_end": False,
        "admission.initial_rows": 500,
        "admission.max_rows": 500,
    }
    effective = config.load(code=p.config, environ={}, overrides=settings)
    p.run(config=effective, until_done=True, listeners=[])
    return folder


@pytest.fixture
def checkpoint(finished: Path, tmp_path: Path) -> Path:
    """A copy to do harm to."""
    return shutil.copytree(finished, tmp_path / "checkpoint")


def tidegate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> Any:
    result = tidegate(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def counted() -> Counter[int]:
    first = SOURCE.first_micros
    assert first is not None
    return Counter(SOURCE.batch(0, ROWS, start=first)["id"].to_pylist())


def test_ls_lists_batches_and_tables(finished: Path) -> None:
    found = answer("state", "ls", finished, "--json")
    last = Ledger(finished / "ledger").last
    assert last is not None
    assert last.state is not None
    newest = found["batches"][0]
    assert newest["batch"] == last.batch_id
    assert newest["runs"] == [run.name for run in last.state.runs]
    assert newest["bytes"] == sum((finished / "state" / name).stat().st_size for name in newest["runs"])
    assert datetime.fromisoformat(newest["watermark"]) > START
    assert datetime.now(UTC) - datetime.fromisoformat(newest["began"]) < timedelta(hours=1)
    tables = {table["name"]: table for table in found["tables"]}
    assert tables[TABLE]["key"] == {"id": "int64", "name": "string"}
    assert tables[TABLE]["kind"] == "value"
    assert tables[WINDOWS]["key"] == {"id": "int64", "window_start": "timestamp[us, tz=UTC]"}
    assert set(tables) == {TABLE, WINDOWS}


def test_show_finds_a_window_by_the_time_that_it_shows(finished: Path) -> None:
    shown = answer("state", "show", finished, WINDOWS, "--limit", 1, "--json")["rows"][0]
    assert datetime.fromisoformat(shown["window_start"]) > START
    key = ["--key", f"id={shown['id']}", "--key", f"window_start={shown['window_start']}"]
    assert answer("state", "show", finished, WINDOWS, *key, "--json")["rows"] == [shown]


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """A checkpoint of twelve batches, each of which rewrites all keys; runs are merged as soon as is due."""
    folder = tmp_path / "merged"
    table = StateTable("t", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
    everything = frozenset(range(4))
    ledger = Ledger(folder / "ledger")
    ledger.take_over()
    shard = Shard(Local(folder / "state"), name="g1-node", scratch=tmp_path / "scratch")
    shard.begin(StateManifest(-1, 4, None, (table,)), everything)
    hashes = pa.array([number << 58 for number in range(64)], pa.uint64())
    for batch_id in range(12):
        columns = [hashes, [NEVER] * 64, [False] * 64, range(64), [batch_id] * 64]
        writes = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, table.written, strict=True)], table.written
        )
        runs = shard.prepare(batch_id, "1", {"t": writes}, None).runs
        manifest = StateManifest(batch_id, 4, None, (table,), runs)
        ledger.append(Entry(batch_id, 1, {}, {}, {}, state=manifest))
        shard.commit(batch_id, None)
        while shard.compact():
            pass
    shard.close()
    (folder / "pipeline.json").write_text('{"pipeline": "merged", "sources": []}')
    open_log(Checkpoint.at(folder), None)
    return folder


def names_of(folder: Path) -> list[frozenset[str]]:
    """The runs of each batch in the ledger, newest first."""
    entries = Ledger(folder / "ledger").entries()
    return [frozenset(run.name for run in entry.state.runs) for entry in entries if entry.state]


def test_batches_whose_runs_are_no_longer_kept_are_left_out(merged: Path) -> None:
    """The ledger remembers them for longer; that their runs are gone is no damage."""
    ledger = Ledger(merged / "ledger")
    ledger.take_over()
    Garbage(ledger, Local(merged / "state"), retention=3).recover()
    there = {path.name for path in (merged / "state").iterdir()}
    readable = [11 - place for place, names in enumerate(names_of(merged)) if names <= there]
    assert [batch["batch"] for batch in answer("state", "ls", merged, "--json")["batches"]] == readable
    assert 3 <= len(readable) < 12
    assert tidegate("state", "verify", merged).exit_code == 0


def test_verify_finds_a_missing_run_that_only_earlier_batches_need(merged: Path) -> None:
    """Files of still older batches are there, so it was not deleted for its age."""
    names = names_of(merged)
    lost = min(names[5] - names[0])
    (merged / "state" / lost).unlink()
    result = tidegate("state", "verify", merged)
    assert result.exit_code == 1
    assert lost in result.stderr


def test_ls_shows_the_sizes_of_key_groups(finished: Path) -> None:
    found = answer("state", "ls", finished, "--groups", "--json")
    groups = found["tables"][0]["groups"]
    assert sum(group["rows"] for group in groups) == len(counted())
    assert [group["rows"] for group in groups] == sorted((g["rows"] for g in groups), reverse=True)
    shown = tidegate("state", "ls", finished, "--groups")
    assert shown.exit_code == 0
    largest = groups[0]["rows"] * 256 / len(counted())
    assert f"{TABLE}: {len(counted())} rows in {len(groups)} of 256 key groups" in shown.stdout
    assert f"the largest has {largest:.1f} times the mean" in shown.stdout


@pytest.mark.parametrize("number", [7, 30])
def test_show_reads_a_key(finished: Path, number: int) -> None:
    name = name_of(number)
    how = ["--null", "name"] if name is None else ["--key", f"name={name}"]
    found = answer("state", "show", finished, TABLE, "--key", f"id={number}", *how, "--json")
    wanted = {"id": number, "name": name, "n.count": counted()[number], "expires": None}
    assert found["rows"] == [wanted]


def test_show_reads_by_a_part_of_the_key(finished: Path) -> None:
    found = answer("state", "show", finished, TABLE, "--null", "name", "--json")
    assert sorted(row["id"] for row in found["rows"]) == [n for n in sorted(counted()) if n % 10 == 0]


def test_show_gives_the_first_rows_and_says_that_there_are_more(finished: Path) -> None:
    found = answer("state", "show", finished, TABLE, "--limit", "3", "--json")
    assert len(found["rows"]) == 3
    assert found["more"]
    assert "--limit" in tidegate("state", "show", finished, TABLE, "--limit", "3").stdout
    every = answer("state", "show", finished, TABLE, "--limit", str(len(counted())), "--json")
    assert len(every["rows"]) == len(counted())
    assert not every["more"]


def test_show_reads_an_earlier_batch(finished: Path) -> None:
    batches = answer("state", "ls", finished, "--json")["batches"]
    counts = [
        sum(
            row["n.count"]
            for row in answer("state", "show", finished, TABLE, "--limit", "99", "--batch", n, "--json")[
                "rows"
            ]
        )
        for n in (batches[0]["batch"], batches[1]["batch"])
    ]
    assert counts[0] == ROWS
    assert 0 < counts[1] < ROWS


def test_export_holds_every_row_with_its_names(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert tidegate("state", "export", finished, TABLE, out).exit_code == 0
    rows = pq.read_table(out)
    assert rows.column_names == ["id", "name", "n.count", "expires"]
    found = {(row["id"], row["name"]): row["n.count"] for row in rows.to_pylist()}
    assert found == {(number, name_of(number)): n for number, n in counted().items()}
    assert rows["expires"].null_count == rows.num_rows


def test_export_says_when_rows_expire(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "windows.parquet"
    assert tidegate("state", "export", finished, WINDOWS, out).exit_code == 0
    rows = pq.read_table(out).to_pylist()
    watermark = Inspection(finished).batch().watermark
    assert watermark is not None
    assert rows
    assert all(row["expires"] > watermark for row in rows)


def test_export_is_written_in_pieces(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.run.inspection._AT_ONCE", 1)
    out = tmp_path / "out.parquet"
    assert tidegate("state", "export", finished, TABLE, out).exit_code == 0
    assert pq.ParquetFile(out).num_row_groups > 10
    assert pq.read_table(out).num_rows == len(counted())


def test_export_does_not_overwrite(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_bytes(b"mine")
    assert isinstance(tidegate("state", "export", finished, TABLE, out).exception, StateError)
    assert out.read_bytes() == b"mine"


def test_verify_finds_nothing_in_what_a_run_left(finished: Path) -> None:
    result = tidegate("state", "verify", finished)
    assert result.exit_code == 0
    assert "all in order" in result.stdout


@pytest.mark.parametrize("place", [3, 0.3, 0.6, 0.9, -1])
def test_verify_finds_a_flipped_byte(checkpoint: Path, place: float) -> None:
    name = Inspection(checkpoint).batch().manifest.runs[0].name
    path = checkpoint / "state" / name
    content = bytearray(path.read_bytes())
    content[int(place * len(content)) if isinstance(place, float) else place] ^= 0x40
    path.write_bytes(content)
    result = tidegate("state", "verify", checkpoint)
    assert result.exit_code == 1
    assert name in result.stderr
    assert "1 problems" in result.stdout


def test_verify_finds_runs_that_are_missing_or_short(checkpoint: Path) -> None:
    missing, short, *_ = Inspection(checkpoint).batch().manifest.runs
    (checkpoint / "state" / missing.name).unlink()
    content = (checkpoint / "state" / short.name).read_bytes()
    (checkpoint / "state" / short.name).write_bytes(content[:-100])
    result = tidegate("state", "verify", checkpoint)
    assert result.exit_code == 1
    assert f"{missing.name} is not in" in result.stderr
    assert f"run {short.name} has" in result.stderr


def test_verify_finds_a_damaged_record_of_the_ledger_and_checks_the_rest(checkpoint: Path) -> None:
    record = max((checkpoint / "ledger").glob("*.json"))
    record.write_bytes(record.read_bytes()[:-10])
    result = tidegate("state", "verify", checkpoint)
    assert result.exit_code == 1
    assert str(record) in result.stderr
    assert "0 runs" not in result.stdout
    assert isinstance(tidegate("state", "ls", checkpoint).exception, CheckpointError)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def problems(checkpoint: Path) -> str:
    result = tidegate("state", "verify", checkpoint)
    assert result.exit_code == 1
    return str(result.stderr)


def test_verify_finds_a_gap_in_the_ledger(checkpoint: Path) -> None:
    *_, lost, _ = sorted((checkpoint / "ledger").glob("*.json"))
    lost.unlink()
    assert f"{lost}: this record of the ledger is missing" in problems(checkpoint)


def test_verify_knows_a_missing_end_of_the_ledger_by_what_spark_has_finished(checkpoint: Path) -> None:
    max((checkpoint / "ledger").glob("*.json")).unlink()
    said = problems(checkpoint)
    assert "the newest records of the ledger are missing" in said
    assert "leave it as it is" in said


def test_verify_finds_a_flipped_bit_in_the_ledger(checkpoint: Path) -> None:
    record = max((checkpoint / "ledger").glob("*.json"))
    flip(record, record.read_bytes().index(b'"batch_id": ') + len(b'"batch_id": '))
    assert f"{record}: its checksum does not match its content" in problems(checkpoint)


def test_verify_finds_a_flipped_bit_in_the_place_of_the_log(checkpoint: Path) -> None:
    label = checkpoint / "state.json"
    flip(label, label.read_bytes().index(b'"id": "') + len(b'"id": "'))
    said = problems(checkpoint)
    assert "state.json cannot be read: its checksum does not match" in said
    assert ".run" not in said, "the runs are looked at all the same"


def test_verify_misses_the_place_of_the_log(checkpoint: Path, tmp_path: Path) -> None:
    save(checkpoint, tmp_path / "saved", settle=0)
    assert tidegate("state", "verify", tmp_path / "saved").exit_code == 0, "no run has used it"
    (checkpoint / "state.json").unlink()
    assert "state.json is missing" in problems(checkpoint)


def test_verify_compares_what_spark_says_of_a_batch_with_the_ledger(checkpoint: Path) -> None:
    last = Ledger(checkpoint / "ledger").last
    assert last is not None
    offsets = checkpoint / "spark/offsets" / str(last.batch_id)
    offsets.write_bytes(b"")
    assert f"{offsets}: it disagrees with the ledger" in problems(checkpoint)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["show", "nowhere", TABLE], CheckpointError, "nowhere is not a checkpoint"),
        (["show", "{}", "nothing"], StateError, f"it has: {TABLE}, {WINDOWS}"),
        (["show", "{}", TABLE, "--batch", "999"], CheckpointError, "batch 999 is not available"),
        (["show", "{}", TABLE, "--key", "n=1"], StateError, "it has: id"),
        (["show", "{}", TABLE, "--key", "id=x"], StateError, "'x' is not a value of the key column id"),
        (["ls", "{0}", "--log", "{0}/gone"], StateError, "there is no folder {0}/gone"),
        (["export", "{0}", TABLE, "{0}/gone/x.parquet"], StateError, "cannot write {0}/gone/x.parquet"),
    ],
)
def test_errors_say_what_is_wrong(
    finished: Path, arguments: list[str], kind: type[Exception], message: str
) -> None:
    failure = tidegate("state", *(argument.format(finished) for argument in arguments)).exception
    assert isinstance(failure, kind)
    assert message.format(finished) in str(failure)


def test_a_log_elsewhere_is_named(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "state").rename(tmp_path / "elsewhere")
    failure = tidegate("state", "ls", checkpoint).exception
    assert isinstance(failure, StateError)
    assert "--log" in str(failure)
    assert tidegate("state", "verify", checkpoint, "--log", tmp_path / "elsewhere").exit_code == 0


def test_a_checkpoint_without_state_has_nothing_to_list(tmp_path: Path) -> None:
    (tmp_path / "pipeline.json").write_text('{"pipeline": "plain", "sources": []}')
    assert "no batch with state" in tidegate("state", "ls", tmp_path).stdout
    assert isinstance(tidegate("state", "show", tmp_path, TABLE).exception, CheckpointError)


def test_a_savepoint_from_the_command_line(finished: Path, tmp_path: Path) -> None:
    result = tidegate("savepoint", finished, tmp_path / "saved")
    assert result.exit_code == 0
    assert f"--checkpoint {tmp_path / 'saved'}" in result.stdout
    assert tidegate("state", "verify", tmp_path / "saved").exit_code == 0


@pytest.mark.s3
def test_state_in_an_object_store(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = answer("state", "show", checkpoint, TABLE, "--limit", "99", "--json")
    with servers.s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        place = f"s3://{server.bucket}/log"
        remote = Remote(place)
        for path in (checkpoint / "state").iterdir():
            remote.write(path.name, [path.read_bytes()])
        shutil.rmtree(checkpoint / "state")
        assert answer("state", "show", checkpoint, TABLE, "--limit", "99", "--json", "--log", place) == whole
        assert tidegate("state", "verify", checkpoint, "--log", place).exit_code == 0
        assert tidegate("savepoint", checkpoint, tmp_path / "saved", "--log", place).exit_code == 0
        remote.delete(Inspection(checkpoint, log=place).batch().manifest.runs[0].name)
        assert tidegate("state", "verify", checkpoint, "--log", place).exit_code == 1
    assert answer("state", "show", tmp_path / "saved", TABLE, "--limit", "99", "--json") == whole
