"""A batch is committed once, by the newest driver, in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.disk import Disk
from tidegate.errors import CheckpointError, FencedError
from tidegate.ledger import ledger as module
from tidegate.ledger.atomic import create
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut, Entry


def entry(batch_id: int, ledger: Ledger) -> Entry:
    cut = {"source-1": Cut(1, 2)}
    return Entry(batch_id, ledger.generation, cut, {}, {"files:/x": {"rows": 3}}, 10)


def driver(folder: Path) -> Ledger:
    ledger = Ledger(folder)
    ledger.take_over()
    return ledger


def test_a_new_one_is_empty(tmp_path: Path) -> None:
    assert Ledger(tmp_path).last is None


def test_what_was_appended_is_there_after_restarts(tmp_path: Path) -> None:
    written = []
    for number in range(12):
        ledger = driver(tmp_path)
        written.append(entry(number, ledger))
        ledger.append(written[-1])
        driver(tmp_path)
    again = Ledger(tmp_path)
    assert again.last == written[-1]
    assert [again.get(number) for number in range(13)] == [*written, None]
    assert written[-1].generation == 23


def test_an_older_driver_is_fenced(tmp_path: Path) -> None:
    old = driver(tmp_path)
    old.append(entry(0, old))
    new = driver(tmp_path)
    assert new.generation > old.generation
    with pytest.raises(FencedError):
        old.append(entry(1, old))
    assert new.get(1) is None
    new.append(entry(1, new))


def test_a_driver_that_slept_in_the_middle_of_its_commit_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = driver(tmp_path)
    replaced: list[Ledger] = []

    def late(path: Path, content: bytes, disk: Disk) -> bool:
        monkeypatch.undo()
        replaced.append(driver(tmp_path))
        return create(path, content, disk)

    monkeypatch.setattr(module, "create", late)
    with pytest.raises(FencedError):
        old.append(entry(0, old))
    assert replaced[0].last is None
    replaced[0].append(entry(0, replaced[0]))


def test_taking_over_sees_what_was_committed_since_reading(tmp_path: Path) -> None:
    old = driver(tmp_path)
    new = Ledger(tmp_path)
    old.append(entry(0, old))
    new.take_over()
    assert new.last is not None
    assert new.last.batch_id == 0
    assert new.generation > old.generation


def test_reading_disturbs_nobody(tmp_path: Path) -> None:
    running = driver(tmp_path)
    Ledger(tmp_path)
    running.append(entry(0, running))


def test_batches_follow_one_another(tmp_path: Path) -> None:
    ledger = driver(tmp_path)
    with pytest.raises(CheckpointError, match="expects batch 0"):
        ledger.append(entry(1, ledger))
    ledger.append(entry(0, ledger))
    with pytest.raises(CheckpointError, match="expects batch 1"):
        ledger.append(entry(2, ledger))


def test_a_broken_record_is_told_with_its_path(tmp_path: Path) -> None:
    ledger = driver(tmp_path)
    ledger.append(entry(0, ledger))
    path = max(tmp_path.glob("*.json"))
    path.write_text("{")
    with pytest.raises(CheckpointError, match=path.name):
        Ledger(tmp_path)


def test_of_many_that_create_one_file_exactly_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda number: create(path, b"%04d" % number), range(200)))
    assert won.count(True) == 1
    assert path.read_bytes() == b"%04d" % won.index(True)
    assert [p.name for p in tmp_path.iterdir()] == ["one"]


def test_of_many_drivers_each_has_its_own_generation(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = [ledger.generation for ledger in pool.map(lambda _: driver(tmp_path), range(40))]
    assert sorted(taken) == list(range(1, 41))


def test_old_records_are_forgotten_and_a_driver_that_slept_since_is_fenced(tmp_path: Path) -> None:
    zombie = driver(tmp_path)
    zombie.append(entry(0, zombie))
    ledger = driver(tmp_path)
    for batch_id in range(1, 30):
        ledger.append(entry(batch_id, ledger))
        ledger.forget(keep=3)
    assert 3 <= len(list(ledger.entries())) <= 6
    with pytest.raises(FencedError):
        zombie.append(entry(1, zombie))
    again = Ledger(tmp_path)
    assert again.last is not None
    assert again.last.batch_id == 29
    assert [found.batch_id for found in again.entries()][:3] == [29, 28, 27]


def test_a_driver_that_slept_since_it_read_an_empty_ledger_takes_over_at_its_end(tmp_path: Path) -> None:
    """Its number, the first, is free again: the record that had it was forgotten."""
    sleeper = Ledger(tmp_path)
    running = driver(tmp_path)
    for batch_id in range(10):
        running.append(entry(batch_id, running))
        running.forget(keep=2)
    assert not (tmp_path / f"{0:012d}.json").exists()
    sleeper.take_over()
    assert (sleeper.last, sleeper.generation) == (running.last, running.generation + 1)
    with pytest.raises(FencedError):
        running.append(entry(10, running))
    sleeper.append(entry(10, sleeper))


def test_a_number_that_a_dead_driver_took_again_is_no_way_in_for_another(tmp_path: Path) -> None:
    """It died before it saw that its number had been forgotten."""
    second = driver(tmp_path)
    sleeper = Ledger(tmp_path)
    for batch_id in range(10):
        second.append(entry(batch_id, second))
        second.forget(keep=2)
    create(tmp_path / f"{0:012d}.json", b'{"generation": 1}')
    sleeper.take_over()
    assert sleeper.last == second.last
    assert sleeper.generation > second.generation


def test_a_driver_that_slept_while_it_forgot_records_frees_no_number(tmp_path: Path) -> None:
    """It wakes up to note which record is the oldest, when those after it have been forgotten, too."""

    class Sleepy(Disk):
        def link(self, source: Path, target: Path) -> None:
            if target.name.startswith("oldest") and not meanwhile:
                other = driver(tmp_path)
                for batch_id in range(10, 30):
                    other.append(entry(batch_id, other))
                    other.forget(keep=2)
                meanwhile.append(other)
            super().link(source, target)

    meanwhile: list[Ledger] = []
    zombie = Ledger(tmp_path, Sleepy())
    zombie.take_over()
    for batch_id in range(10):
        zombie.append(entry(batch_id, zombie))
    zombie.forget(keep=2)
    assert meanwhile
    with pytest.raises(FencedError):
        zombie.append(entry(10, zombie))
    meanwhile[0].append(entry(30, meanwhile[0]))
    meanwhile[0].forget(keep=1)
    assert len([*tmp_path.glob("oldest-*")]) == 1


def test_a_ledger_whose_newest_records_are_gone_is_told(tmp_path: Path) -> None:
    ledger = driver(tmp_path)
    for batch_id in range(10):
        ledger.append(entry(batch_id, ledger))
        ledger.forget(keep=2)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    with pytest.raises(CheckpointError, match="lost its newest records"):
        Ledger(tmp_path)


def test_starts_without_a_batch_do_not_cost_entries(tmp_path: Path) -> None:
    ledger = driver(tmp_path)
    for batch_id in range(5):
        ledger.append(entry(batch_id, ledger))
    for _ in range(15):
        ledger = driver(tmp_path)
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
    Ledger(tmp_path, Watched()).take_over()
    assert done == ["sync", "link", "sync"]


def test_names_of_new_folders_are_durable(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Watched(Disk):
        def sync_folder(self, folder: Path) -> None:
            synced.append(folder)
            super().sync_folder(folder)

    Ledger(tmp_path / "job" / "ledger", Watched()).take_over()
    assert synced == [tmp_path, tmp_path / "job", tmp_path / "job" / "ledger"]
