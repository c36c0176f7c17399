"""The commands on a checkpoint in an object store, which need neither Spark nor a driver."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.run.test_drop import COUNTS, GROUPS, IDS, rows
from tidegate.cli.main import app
from tidegate.errors import CheckpointError, ControlError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.presence import driver_at
from tidegate.ledger.records import Cut, Entry
from tidegate.run.checkpoint import Checkpoint, inner_log, open_log
from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.shard import Shard
from tidegate.storage.place import open_storage

pytestmark = pytest.mark.s3

ENDS = [{"logOffset": 0}, {"logOffset": 1}]


@pytest.fixture
def url(s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two batches of a source of files are committed; the driver was killed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = Checkpoint.at(f"{s3_place}/job")
    checkpoint.storage.create("pipeline.json", b'{"pipeline": "job", "sources": []}')
    open_log(checkpoint, None)
    ledger = Ledger(checkpoint.ledger)
    ledger.take_over()
    shard = Shard(inner_log(checkpoint), name="g1-node", scratch=tmp_path / "scratch")
    shard.begin(StateManifest(-1, 4, None, (COUNTS,)), GROUPS)
    copy = checkpoint.spark_copy(1)
    for batch_id, end in enumerate(ENDS):
        runs = shard.prepare(batch_id, "1", {"counts": rows(COUNTS, batch_id)}, None).runs
        copy.files.note(0, str(batch_id), b'v1\n{"path": "file", "batchId": 0}')
        copy.sync(batch_id, [None], [end])
        start = ENDS[batch_id - 1] if batch_id else None
        state = StateManifest(batch_id, 4, None, (COUNTS,), runs)
        cut = {"source-1": Cut(start, end)}
        ledger.append(Entry(batch_id, 1, cut, {"source-1": 7}, {}, watermark=batch_id, state=state))
        shard.commit(batch_id, None)
    shard.close()
    return str(checkpoint)


def call(*command: str) -> str:
    outcome = CliRunner().invoke(app, [*command], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_state_is_listed_shown_exported_and_verified(url: str, tmp_path: Path) -> None:
    assert [each["batch"] for each in json.loads(call("state", "ls", url, "--json"))["batches"]] == [1, 0]
    shown = json.loads(call("state", "show", url, "counts", "--key", "id=5", "--json"))
    assert [row["n"] for row in shown["rows"]] == [1]
    assert f"wrote {len(IDS)} rows" in call("state", "export", url, "counts", str(tmp_path / "out.parquet"))
    assert "all in order" in call("state", "verify", url)


def test_what_is_missing_is_found(url: str) -> None:
    open_storage(f"{url}/spark/sources-0").delete("1-000000000001")
    open_storage(f"{url}/state").delete(open_storage(f"{url}/state").names()[0])
    outcome = CliRunner().invoke(app, ["state", "verify", url])
    assert outcome.exit_code == 1
    assert f"{url}/spark/sources-0/1: this part of the list of files" in outcome.output
    assert "2 problems" in outcome.output


def test_a_step_is_dropped_and_the_watermark_set_back(url: str) -> None:
    assert "after batch 1" in call("state", "watermark", url)
    call("state", "watermark", url, "--reset", "1969-01-01T00:00:00Z")
    assert "1969-01-01" in call("state", "watermark", url)
    assert "discarded counts" in call("state", "drop", url, "counts")
    last = Ledger(Checkpoint.at(url).ledger).last
    assert last is not None
    assert last.state is not None
    assert last.state.tables == ()


def test_a_savepoint_goes_from_store_to_store_and_to_a_folder(url: str, tmp_path: Path) -> None:
    for source, dest in ((url, f"{url}-saved"), (f"{url}-saved", str(tmp_path / "folder"))):
        assert "saved batch 1" in call("savepoint", source, dest)
        assert "all in order" in call("state", "verify", dest)
        with pytest.raises(CheckpointError, match="already exists"):
            call("savepoint", source, dest)
    spark = Checkpoint.at(tmp_path / "folder").spark
    assert (spark.offsets(0), spark.offsets(1)) == ([ENDS[0]], [ENDS[1]])
    assert spark.newest("commits") == 0, "nobody has said that the batch was published"
    assert spark.missing_log(0, ENDS[1]) is None


def test_a_savepoint_that_fails_leaves_nothing(url: str) -> None:
    (name, *_) = open_storage(f"{url}/state").names()
    open_storage(f"{url}/state").write(name, [b"damaged"])
    outcome = CliRunner().invoke(app, ["savepoint", url, f"{url}-saved"])
    assert outcome.exception is not None
    places = [f"{url}-saved{inner}" for inner in ("", "/ledger", "/state", "/spark", "/spark/sources-0")]
    assert [open_storage(place).names() for place in places] == [[], [], [], [], []]


def test_a_running_pipeline_is_told_apart_from_none(url: str) -> None:
    with pytest.raises(ControlError, match=f"no pipeline with a control API runs on {url}"):
        call("status", url)
    assert driver_at(open_storage(url)) is None


def test_rows_are_those_of_the_last_batch(url: str) -> None:
    from tidegate.run.inspection import Inspection

    found = Inspection(url)
    with found.opened(found.batch()) as reader:
        counts = pa.concat_tables(reader.pieces(reader.table("counts")))
    assert counts["n"].to_pylist() == [1] * len(IDS)
