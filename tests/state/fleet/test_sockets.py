"""The folder of the nodes' sockets: private, short, and not left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.errors import StateError
from tidegate.state.fleet.sockets import SocketFolder


def folders(parent: Path) -> list[Path]:
    return list(parent.iterdir())


def test_sockets_lie_in_a_private_folder_that_goes_with_its_owner(tmp_path: Path) -> None:
    sockets = SocketFolder(tmp_path)
    one, other = sockets.path(), sockets.path()
    assert one.parent == other.parent
    assert one != other
    assert stat.S_IMODE(one.parent.stat().st_mode) == 0o700
    sockets.close()
    assert folders(tmp_path) == []
    again = sockets.path()
    assert again.parent.is_dir()
    sockets.close()
    assert folders(tmp_path) == []


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from tidegate.state.fleet.sockets import SocketFolder\n"
        "SocketFolder(pathlib.Path(sys.argv[1])).path().touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    (left,) = folders(tmp_path)
    live = SocketFolder(tmp_path)
    mine = live.path().parent
    assert folders(tmp_path) == [mine]
    assert mine != left
    other = SocketFolder(tmp_path)
    assert set(folders(tmp_path)) | {other.path().parent} == {mine, other.path().parent}
    live.close()
    other.close()


def test_what_another_user_or_nobody_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tidegate-nodes-link").symlink_to(tmp_path / "elsewhere")
    if os.geteuid() == 0:
        (tmp_path / "tidegate-nodes-other").mkdir()
        os.chown(tmp_path / "tidegate-nodes-other", 65_534, 65_534)
    before = set(folders(tmp_path))
    sockets = SocketFolder(tmp_path)
    sockets.path()
    sockets.close()
    assert set(folders(tmp_path)) == before


def test_a_long_name_of_the_usual_folder_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    sockets = SocketFolder()
    assert sockets.path().is_relative_to("/tmp")
    assert len(str(sockets.path())) < 107
    sockets.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="TMPDIR"):
        SocketFolder(tmp_path / "missing").path()
