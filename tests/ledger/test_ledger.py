"""A batch is committed once, by the newest driver, in order: in a folder, memory and an object store."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidegate.disk import Disk
from tidegate.errors import CheckpointError, FencedError, StorageError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut, Entry, Generation, encode
from tidegate.storage.local import Local
from tidegate.storage.memory import Memory
from tidegate.storage.place import open_storage
from tidegate.storage.storage import Storage
from tidegate.testing.servers import S3, faulty_store


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return Local(tmp_path)
    if request.param == "memory":
        return Memory()
    return open_storage(request.getfixturevalue("s3_place"))


def entry(batch_id: int, ledger: Ledger) -> Entry:
    cut = {"source-1": Cut(1, 2)}
    return Entry(batch_id, ledger.generation, cut, {}, {"files:/x": {"rows": 3}}, 10)


def driver(place: Storage | Path) -> Ledger:
    ledger = Ledger(place)
    ledger.take_over()
    return ledger


def test_a_new_one_is_empty(place: Storage) -> None:
    assert Ledger(place).last is None


def test_what_was_appended_is_there_after_restarts(place: Storage) -> None:
    written = []
    for number in range(12):
        ledger = driver(place)
        written.append(entry(number, ledger))
        ledger.append(written[-1])
        driver(place)
    again = Ledger(place)
    assert again.last == written[-1]
    assert [again.get(number) for number in range(13)] == [*written, None]
    assert written[-1].generation == 23


def test_an_older_driver_is_fenced(place: Storage) -> None:
    old = driver(place)
    old.append(entry(0, old))
    new = driver(place)
    assert new.generation > old.generation
    with pytest.raises(FencedError):
        old.append(entry(1, old))
    assert new.get(1) is None
    new.append(entry(1, new))


def test_a_driver_that_slept_in_the_middle_of_its_commit_is_fenced(place: Storage) -> None:
    old = driver(place)
    replaced: list[Ledger] = []
    create = type(place).create

    def late(self: Storage, name: str, content: bytes) -> bool:
        monkeypatch.undo()
        replaced.append(driver(place))
        return create(self, name, content)

    # `undo` must leave the environment of a store as it is.
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(type(place), "create", late)
        with pytest.raises(FencedError):
            old.append(entry(0, old))
    assert replaced[0].last is None
    replaced[0].append(entry(0, replaced[0]))


def test_taking_over_sees_what_was_committed_since_reading(place: Storage) -> None:
    old = driver(place)
    new = Ledger(place)
    old.append(entry(0, old))
    new.take_over()
    assert new.last is not None
    assert new.last.batch_id == 0
    assert new.generation > old.generation


def test_reading_disturbs_nobody(place: Storage) -> None:
    running = driver(place)
    Ledger(place)
    running.append(entry(0, running))


def test_batches_follow_one_another(place: Storage) -> None:
    ledger = driver(place)
    with pytest.raises(CheckpointError, match="expects batch 0"):
        ledger.append(entry(1, ledger))
    ledger.append(entry(0, ledger))
    with pytest.raises(CheckpointError, match="expects batch 1"):
        ledger.append(entry(2, ledger))


def test_a_broken_record_is_told_with_its_path(place: Storage) -> None:
    ledger = driver(place)
    ledger.append(entry(0, ledger))
    name = max(place.names())
    place.write(name, [b"{"])
    with pytest.raises(CheckpointError, match=re.escape(f"{place}/{name}")):
        Ledger(place)


def test_of_many_drivers_each_has_its_own_generation(place: Storage) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = [ledger.generation for ledger in pool.map(lambda _: driver(place), range(40))]
    assert sorted(taken) == list(range(1, 41))


def test_old_records_are_forgotten_and_a_driver_that_slept_since_is_fenced(place: Storage) -> None:
    zombie = driver(place)
    zombie.append(entry(0, zombie))
    ledger = driver(place)
    for batch_id in range(1, 30):
        ledger.append(entry(batch_id, ledger))
        ledger.forget(keep=3)
    assert 3 <= len(list(ledger.entries())) <= 6
    with pytest.raises(FencedError):
        zombie.append(entry(1, zombie))
    again = Ledger(place)
    assert again.last is not None
    assert again.last.batch_id == 29
    assert [found.batch_id for found in again.entries()][:3] == [29, 28, 27]


def test_a_driver_that_slept_since_it_read_an_empty_ledger_takes_over_at_its_end(place: Storage) -> None:
    """Its number, the first, is free again: the record that had it was forgotten."""
    sleeper = Ledger(place)
    running = driver(place)
    for batch_id in range(10):
        running.append(entry(batch_id, running))
        running.forget(keep=2)
    assert f"{0:012d}.json" not in place.names()
    sleeper.take_over()
    assert (sleeper.last, sleeper.generation) == (running.last, running.generation + 1)
    with pytest.raises(FencedError):
        running.append(entry(10, running))
    sleeper.append(entry(10, sleeper))


def test_a_number_that_a_dead_driver_took_again_is_no_way_in_for_another(place: Storage) -> None:
    """It died before it saw that its number had been forgotten; it had wanted that of the running one."""
    second = driver(place)
    sleeper = Ledger(place)
    for batch_id in range(10):
        second.append(entry(batch_id, second))
        second.forget(keep=2)
    place.create(f"{0:012d}.json", encode(Generation(1, "dead")))
    sleeper.take_over()
    assert sleeper.last == second.last
    assert sleeper.generation > second.generation


def test_a_driver_that_slept_while_it_forgot_records_frees_no_number(place: Storage) -> None:
    """It wakes up to note which record is the oldest, when those after it have been forgotten, too."""
    create = type(place).create

    def sleepy(self: Storage, name: str, content: bytes) -> bool:
        if name.startswith("oldest") and not meanwhile:
            meanwhile.append(driver(place))
            for batch_id in range(10, 30):
                meanwhile[0].append(entry(batch_id, meanwhile[0]))
                meanwhile[0].forget(keep=2)
        return create(self, name, content)

    meanwhile: list[Ledger] = []
    zombie = driver(place)
    for batch_id in range(10):
        zombie.append(entry(batch_id, zombie))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(place), "create", sleepy)
        zombie.forget(keep=2)
    assert meanwhile
    with pytest.raises(FencedError):
        zombie.append(entry(10, zombie))
    last = meanwhile[0].last
    meanwhile[0].append(entry(30, meanwhile[0]))
    assert last is not None
    assert Ledger(place).last != last


def test_a_ledger_whose_newest_records_are_gone_is_told(place: Storage) -> None:
    ledger = driver(place)
    for batch_id in range(10):
        ledger.append(entry(batch_id, ledger))
        ledger.forget(keep=2)
    for name in place.names():
        if name.endswith(".json"):
            place.delete(name)
    with pytest.raises(CheckpointError, match="lost its newest records"):
        Ledger(place)


def test_starts_without_a_batch_do_not_cost_entries(place: Storage) -> None:
    ledger = driver(place)
    for batch_id in range(5):
        ledger.append(entry(batch_id, ledger))
    for _ in range(15):
        ledger = driver(place)
    ledger.append(entry(5, ledger))
    ledger.forget(keep=5)
    assert len(list(ledger.entries())) >= 5


def test_what_was_there_is_durable_before_a_record_follows_it(tmp_path: Path) -> None:
    """The one who wrote it may have died between its name and the sync of the folder."""
    done: list[str] = []

    class Watched(Disk):
        def sync_folder(self, folder: Path) -> None:
            done.append("sync")
            super().sync_folder(folder)

        def link(self, source: Path, target: Path) -> None:
            done.append("link")
            super().link(source, target)

    Ledger(tmp_path).take_over()
    Ledger(Local(tmp_path, Watched())).take_over()
    assert done == ["sync", "link", "sync"]


def test_names_of_new_folders_are_durable(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Watched(Disk):
        def sync_folder(self, folder: Path) -> None:
            synced.append(folder)
            super().sync_folder(folder)

    Ledger(Local(tmp_path / "job" / "ledger", Watched())).take_over()
    assert synced == [tmp_path, tmp_path / "job", tmp_path / "job" / "ledger"]


class Unreliable(Memory):
    """Loses the answers to creations, or the creations themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: list[str] = []

    def create(self, name: str, content: bytes) -> bool:
        fate = self.lose.pop(0) if self.lose else "nothing"
        is_new = fate != "request" and super().create(name, content)
        if fate != "nothing":
            raise StorageError("the connection was closed")
        return is_new

    def open(self, name: str) -> Any:
        if self.lose[:1] == ["away"]:
            raise StorageError("the store is away")
        return super().open(name)


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_creation_without_an_answer_is_settled_by_what_is_there(lost: str) -> None:
    store = Unreliable()
    ledger = driver(store)
    store.lose = [lost]
    ledger.append(entry(0, ledger))
    ledger.append(entry(1, ledger))
    assert [found.batch_id for found in Ledger(store).entries()] == [1, 0]


def test_a_creation_without_an_answer_that_another_driver_forestalled_is_fenced() -> None:
    store = Unreliable()
    old = driver(store)
    new = driver(store)
    store.lose = ["answer"]
    with pytest.raises(FencedError):
        old.append(entry(0, old))
    new.append(entry(0, new))


@pytest.mark.parametrize("lost", [["answer", "away"], ["nothing", "away"]])
def test_while_it_is_open_whether_a_batch_was_committed_nothing_else_is(lost: list[str]) -> None:
    """Another attempt at the batch may be at odds with a record that arrives late."""
    store = Unreliable()
    ledger = driver(store)
    first, other = entry(0, ledger), Entry(0, ledger.generation, {}, {}, {})
    store.lose = [*lost]
    with pytest.raises(StorageError, match="not known whether batch 0 was committed"):
        ledger.append(first)
    store.lose = []
    with pytest.raises(StorageError):
        ledger.append(other)
    assert Ledger(store).last == first


@pytest.mark.s3
def test_in_the_steady_state_no_names_are_listed(
    s3_server: S3, s3_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_store(s3_server.endpoint) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        ledger = driver(open_storage(s3_place))
        for batch_id in range(10):
            ledger.append(entry(batch_id, ledger))
            ledger.forget(keep=3)
        listed = store.asked("LIST")
        store.requests.clear()
        for batch_id in range(10, 40):
            ledger.append(entry(batch_id, ledger))
            ledger.forget(keep=3)
        assert listed
        assert store.asked("LIST") == 0
        assert store.asked("GET") == 30
        assert store.asked("PUT", ".json") == 30
        assert len(open_storage(s3_place).names()) <= 2 * 3 + 1
