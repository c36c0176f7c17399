"""Where a checkpoint is, and where its runs are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate as tg
from tidegate.errors import CheckpointError
from tidegate.pipeline.plan import Plan
from tidegate.run.checkpoint import check_owner, find, make_folder, open_log


def test_in_the_checkpoint_unless_told(tmp_path: Path) -> None:
    assert open_log(tmp_path, None).place == str(tmp_path / "state")
    assert open_log(tmp_path, None) == open_log(tmp_path, None)


def test_elsewhere_again_and_again(tmp_path: Path) -> None:
    place = str(tmp_path / "log")
    first = open_log(tmp_path / "one", place)
    assert first.place == place
    assert open_log(tmp_path / "one", place) == first


def test_one_place_is_not_for_two_checkpoints(tmp_path: Path) -> None:
    open_log(tmp_path / "one", str(tmp_path / "log"))
    with pytest.raises(CheckpointError, match="belongs to another checkpoint"):
        open_log(tmp_path / "two", str(tmp_path / "log"))
    assert open_log(tmp_path / "two", None).place == str(tmp_path / "two/state")


def test_runs_do_not_move_by_themselves(tmp_path: Path) -> None:
    open_log(tmp_path, None)
    with pytest.raises(CheckpointError, match="set it back"):
        open_log(tmp_path, str(tmp_path / "log"))


def reading(folder: str) -> Plan:
    p = tg.Pipeline("reading")
    p.source(tg.sources.Files(folder, schema="id int")).sink(tg.sinks.Discard())
    return p.plan()


def test_a_mistake_before_the_first_batch_leaves_nothing_to_undo(tmp_path: Path) -> None:
    folder = make_folder(str(tmp_path / "checkpoint"))
    check_owner(folder, reading("typo"))
    check_owner(folder, reading("in"))
    (folder / "spark" / "offsets").mkdir(parents=True)
    (folder / "spark" / "offsets" / "0").touch()  # Spark has planned a batch
    with pytest.raises(CheckpointError, match=r"with sources .*/in\), and this is .*/other"):
        check_owner(folder, reading("other"))
    check_owner(folder, reading("in"))


@pytest.mark.parametrize("address", ["{}", "file:{}", "file://{}"])
def test_a_folder_by_any_address(tmp_path: Path, address: str) -> None:
    (tmp_path / "pipeline.json").write_text('{"pipeline": "p", "sources": []}')
    assert find(address.format(tmp_path))[0] == tmp_path


@pytest.mark.parametrize("address", ["s3://bucket/name", "hdfs:/name", "hdfs://host/name"])
def test_a_checkpoint_is_a_local_folder(address: str) -> None:
    with pytest.raises(CheckpointError, match="must be a local folder"):
        find(address)
