"""Where the runs of a checkpoint are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import CheckpointError
from tidegate.run.checkpoint import open_log


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
