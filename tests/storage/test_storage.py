"""Places for files: one behaviour for a folder, memory and an object store."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.errors import MissingExtraError, MissingFileError, StorageError
from tidegate.storage.local import Local
from tidegate.storage.memory import Memory
from tidegate.storage.place import open_storage
from tidegate.storage.remote import Remote
from tidegate.storage.storage import Storage


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
    with pytest.raises(MissingFileError, match=r"gone\.run is not in"):
        storage.open("gone.run")
    with pytest.raises(MissingFileError, match=r"gone\.run is not in"):
        storage.size("gone.run")
    with pytest.raises(MissingFileError, match=r"gone\.run is not in"):
        storage.read("gone.run", [(0, 1)])


@pytest.mark.parametrize("name", ["../up", "a/b", "", "..", ".hidden", "a\0b", "/etc/passwd", "a..b", "a\\b"])
def test_a_name_cannot_lead_out_of_its_place(storage: Storage, name: str) -> None:
    with pytest.raises(StorageError, match="cannot be the name of a file"):
        storage.write(name, [b"x"])


def test_a_file_is_created_once(storage: Storage) -> None:
    assert storage.create("1.json", b"mine")
    assert not storage.create("1.json", b"theirs")
    assert storage.open("1.json").to_pybytes() == b"mine"
    storage.write("1.json", [b"anew"])
    assert storage.open("1.json").to_pybytes() == b"anew"
    storage.delete("1.json")
    assert storage.create("1.json", b"again")


def test_of_racing_writers_one_creates_a_file(storage: Storage) -> None:
    barrier = threading.Barrier(8)

    def race(number: int) -> bool:
        barrier.wait()
        return storage.create("1.json", f"{number}".encode())

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert won.count(True) == 1
    assert storage.open("1.json").to_pybytes() == f"{won.index(True)}".encode()


def test_a_place_within_another_has_names_of_its_own(storage: Storage) -> None:
    inner = storage.within("ledger")
    assert inner.names() == []
    inner.write("a", [b"inner"])
    storage.write("a", [b"outer"])
    assert storage.names() == ["a"] == inner.names()
    assert storage.within("ledger").open("a").to_pybytes() == b"inner"
    assert storage.open("a").to_pybytes() == b"outer"


def test_parts_at_the_start_and_at_the_end_of_a_file(storage: Storage) -> None:
    storage.write("a.run", [b"0123456789"])
    assert (storage.start("a.run", 3).to_pybytes(), storage.end("a.run", 3).to_pybytes()) == (b"012", b"789")
    assert storage.start("a.run", 99).to_pybytes() == storage.end("a.run", 99).to_pybytes() == b"0123456789"
    for look in (storage.start, storage.end):
        with pytest.raises(MissingFileError, match=r"gone\.run is not in"):
            look("gone.run", 3)


def test_files_are_listed_in_order_from_a_name_on(storage: Storage) -> None:
    begun = time.time()
    for name in ("c", "a", "b.run", "z"):
        storage.write(name, [name.encode()])
    storage.within("aa").write("inner", [b"x"])
    storage.within("b").write("inner", [b"x"])
    found = [(file.name, file.size) for file in storage.listed()]
    assert found == [("a", 1), ("b.run", 5), ("c", 1), ("z", 1)]
    assert [file.name for file in storage.listed("b")] == ["b.run", "c", "z"]
    assert [file.name for file in storage.listed("c")] == ["z"]
    assert list(storage.listed("z")) == []
    assert all(file.modified > begun - 60 for file in storage.listed())


def test_places_are_told_and_cleared_with_all_that_is_in_them(storage: Storage) -> None:
    assert storage.places() == []
    storage.write("file", [b"x"])
    for name in ("b", "a"):
        storage.within(name).within("inner").write("file", [b"x"])
    assert storage.places() == ["a", "b"]
    storage.within("a").clear()
    storage.within("a").clear()
    assert storage.places() == ["b"]
    storage.within("a").write("file", [b"again"])
    assert storage.places() == ["a", "b"]
    storage.clear()
    assert storage.places() == storage.names() == []


def test_several_files_are_deleted_at_once(storage: Storage) -> None:
    for name in ("a", "b", "c"):
        storage.write(name, [b"x"])
    storage.delete("a", "c", "never-there")
    assert storage.names() == ["b"]


def test_a_file_is_copied_to_another_place(storage: Storage, tmp_path: Path) -> None:
    storage.write("a", [b"one"])
    inner = storage.within("inner")
    inner.write("new", [b"old"])
    for target in (inner, storage, Local(tmp_path / "elsewhere"), Memory()):
        storage.copy("a", target, "new")
        assert target.open("new").to_pybytes() == b"one"
    Local(tmp_path / "elsewhere").copy("new", storage, "back")
    assert storage.open("back").to_pybytes() == storage.open("a").to_pybytes() == b"one"
    with pytest.raises(MissingFileError, match="gone is not in"):
        storage.copy("gone", inner, "new")


def test_a_place_is_asked_about_many_files(storage: Storage) -> None:
    names = [f"{number:03d}" for number in range(40)]
    for name in names:
        storage.write(name, [name.encode()])
    assert [found.to_pybytes().decode() for found in storage.each(storage.open, names)] == names


def test_a_large_file_is_written_piece_by_piece(storage: Storage) -> None:
    pieces = [bytes([number]) * (3 << 20) for number in range(5)]
    storage.write("large", iter(pieces))
    assert storage.size("large") == 15 << 20
    assert storage.open("large").to_pybytes() == b"".join(pieces)


def test_a_large_write_that_fails_leaves_nothing(storage: Storage) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(4):
            yield bytes(5 << 20)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        storage.write("large", parts())
    assert storage.names() == []


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
    storage = Local(tmp_path)
    assert storage.names() == []
    storage.write("a.run", [b"x"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "a.run"]


def test_a_place_may_be_a_folder_or_a_url(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    for place in (str(folder), f"file://{tmp_path}/with%20space"):
        found = open_storage(place)
        assert isinstance(found, Local)
        assert found.folder == folder
    assert isinstance(open_storage("memory:///"), Remote)
    with pytest.raises(StorageError, match="nosuch://x cannot be used"):
        open_storage("nosuch://x")


@pytest.mark.s3
def test_a_server_that_refuses_is_named(s3_place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage("s3://no-such-bucket-at-all/x")
    with pytest.raises(StorageError, match="s3://no-such-bucket-at-all/x"):
        storage.write("a.run", [b"x"])


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"tidegate\[s3\]"):
        open_storage("s3://bucket/prefix")
