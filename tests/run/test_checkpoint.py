"""Where a checkpoint is, and where its runs are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate as tg
from tidegate.errors import CheckpointError, StorageError
from tidegate.pipeline.plan import Plan
from tidegate.run.checkpoint import Checkpoint, check_log, check_owner, find, find_log, make, open_log


def test_in_the_checkpoint_unless_told(tmp_path: Path) -> None:
    assert open_log(Checkpoint.at(tmp_path), None).place == str(tmp_path / "state")
    assert open_log(Checkpoint.at(tmp_path), None) == open_log(Checkpoint.at(tmp_path), None)


def test_elsewhere_again_and_again(tmp_path: Path) -> None:
    place = str(tmp_path / "log")
    first = open_log(Checkpoint.at(tmp_path / "one"), place)
    assert first.place == place
    assert open_log(Checkpoint.at(tmp_path / "one"), place) == first


def test_one_place_is_not_for_two_checkpoints(tmp_path: Path) -> None:
    open_log(Checkpoint.at(tmp_path / "one"), str(tmp_path / "log"))
    with pytest.raises(CheckpointError, match="belongs to another checkpoint"):
        open_log(Checkpoint.at(tmp_path / "two"), str(tmp_path / "log"))
    assert open_log(Checkpoint.at(tmp_path / "two"), None).place == str(tmp_path / "two/state")


def test_runs_do_not_move_by_themselves(tmp_path: Path) -> None:
    open_log(Checkpoint.at(tmp_path), None)
    with pytest.raises(CheckpointError, match="set it back"):
        open_log(Checkpoint.at(tmp_path), str(tmp_path / "log"))


def reading(folder: str) -> Plan:
    p = tg.Pipeline("reading")
    p.source(tg.sources.Files(folder, schema="id int")).sink(tg.sinks.Discard())
    return p.plan()


def test_a_mistake_before_the_first_batch_leaves_nothing_to_undo(tmp_path: Path) -> None:
    checkpoint = make(str(tmp_path / "checkpoint"))
    check_owner(checkpoint, reading("typo"))
    check_owner(checkpoint, reading("in"))
    (checkpoint.folder / "spark" / "offsets").mkdir(parents=True)
    (checkpoint.folder / "spark" / "offsets" / "0").touch()  # Spark has planned a batch
    with pytest.raises(CheckpointError, match=r"with sources .*/in\), and this is .*/other"):
        check_owner(checkpoint, reading("other"))
    check_owner(checkpoint, reading("in"))


@pytest.mark.parametrize("address", ["{}", "file:{}", "file://{}"])
def test_a_folder_by_any_address(tmp_path: Path, address: str) -> None:
    (tmp_path / "pipeline.json").write_text('{"pipeline": "p", "sources": []}')
    assert find(address.format(tmp_path))[0].folder == tmp_path


@pytest.mark.parametrize("address", ["hdfs:/name", "hdfs://host/name"])
def test_what_is_neither_a_folder_nor_a_store_is_refused(address: str) -> None:
    with pytest.raises((CheckpointError, StorageError), match=address):
        find(address)


@pytest.mark.s3
def test_a_bucket_that_is_not_there_is_told(
    s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CheckpointError, match="s3://nowhere/job: there is no such bucket"):
        check_owner(make("s3://nowhere/job"), reading("in"))


@pytest.mark.s3
def test_in_a_store_its_parts_are_found_as_in_a_folder(
    s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = f"{s3_place}/job"
    checkpoint = make(url)
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: it has no pipeline\.json"):
        find(url)
    check_owner(checkpoint, reading("in"))
    assert find(url)[1] == "reading"
    assert open_log(checkpoint, None).place == f"{url}/state"
    assert open_log(checkpoint, None) == open_log(make(url), None)
    assert find_log(checkpoint, None).url == f"{url}/state"
    check_log(checkpoint, used=True)
    with pytest.raises(CheckpointError, match="set it back"):
        open_log(checkpoint, str(tmp_path / "log"))
    assert checkpoint.folder.parent == tmp_path / "tidegate"
    assert checkpoint.folder.stat().st_mode & 0o077 == 0
