"""Places for runs: one behaviour for a folder, memory and an object store."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tidegate.errors import MissingExtraError, StateError
from tidegate.state.log.storage import Local, Memory, Remote, Storage, open_storage


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "new" / "folder"))
    if request.param == "memory":
        return Memory()
    return open_storage(request.getfixturevalue("s3_place"))


def test_what_is_written_is_read(storage: Storage) -> None:
    storage.write("b.run", [b"one ", b"", b"two"])
    storage.write("a.run", [b"x"])
    assert storage.names() == ["a.run", "b.run"]
    assert storage.size("b.run") == 7
    assert storage.open("b.run").to_pybytes() == b"one two"
    assert [part.to_pybytes() for part in storage.read("b.run", [(4, 3), (0, 3)])] == [b"two", b"one"]


def test_a_blob_is_deleted_once_or_twice(storage: Storage) -> None:
    storage.write("a.run", [b"x"])
    storage.delete("a.run")
    storage.delete("a.run")
    assert storage.names() == []


def test_a_missing_blob_is_named(storage: Storage) -> None:
    with pytest.raises(StateError, match=r"run gone\.run is not in"):
        storage.open("gone.run")
    with pytest.raises(StateError, match=r"run gone\.run is not in"):
        storage.size("gone.run")
    with pytest.raises(StateError, match=r"run gone\.run is not in"):
        storage.read("gone.run", [(0, 1)])


@pytest.mark.parametrize("name", ["../up", "a/b", "", "..", ".hidden", "a\0b", "/etc/passwd", "a..b", "a\\b"])
def test_a_name_cannot_lead_out_of_its_place(storage: Storage, name: str) -> None:
    with pytest.raises(StateError, match="cannot be the name of a run"):
        storage.write(name, [b"x"])


def test_a_write_that_fails_leaves_nothing(storage: Storage) -> None:
    def parts() -> object:
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        storage.write("a.run", parts())  # type: ignore[arg-type]
    assert storage.names() == []


def test_a_local_blob_that_is_open_outlives_its_file(tmp_path: Path) -> None:
    storage = Local(tmp_path)
    storage.write("a.run", [b"still here"])
    held = storage.open("a.run")
    storage.delete("a.run")
    assert held.to_pybytes() == b"still here"
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_a_killed_process_are_removed_in_time(tmp_path: Path) -> None:
    old, young = tmp_path / ".draft-old", tmp_path / ".draft-young"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    assert Local(tmp_path).names() == []
    assert [path.name for path in tmp_path.iterdir()] == [young.name]


def test_a_place_may_be_a_folder_or_a_url(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    for place in (str(folder), f"file://{tmp_path}/with%20space"):
        found = open_storage(place)
        assert isinstance(found, Local)
        assert found.folder == folder
    assert isinstance(open_storage("memory:///"), Remote)
    with pytest.raises(StateError, match="nosuch://x cannot be used"):
        open_storage("nosuch://x")


@pytest.mark.s3
def test_a_server_that_refuses_is_named(s3_place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage("s3://no-such-bucket-at-all/x")
    with pytest.raises(StateError, match="s3://no-such-bucket-at-all/x"):
        storage.write("a.run", [b"x"])


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"tidegate\[s3\]"):
        open_storage("s3://bucket/prefix")
