"""A batch is committed once, by the newest driver, in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.errors import CheckpointError, FencedError
from tidegate.ledger.atomic import create
from tidegate.ledger.ledger import Entry, Ledger


def entry(batch_id: int, ledger: Ledger) -> Entry:
    return Entry(
        batch_id, ledger.generation, {"source-1": {"start": 1, "end": 2}}, {}, {"files:/x": {"rows": 3}}, 10
    )


def test_a_new_one_is_empty(tmp_path: Path) -> None:
    assert Ledger(tmp_path).last is None


def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    written = [entry(number, ledger) for number in range(12)]
    for one in written:
        ledger.append(one)
    again = Ledger(tmp_path)
    assert again.last == written[-1]
    assert [again.get(number) for number in range(13)] == [*written, None]


def test_an_older_driver_is_fenced(tmp_path: Path) -> None:
    old = Ledger(tmp_path)
    old.append(entry(0, old))
    new = Ledger(tmp_path)
    assert new.generation > old.generation
    with pytest.raises(FencedError):
        old.append(entry(1, old))
    assert new.get(1) is None
    new.append(entry(1, new))


def test_batches_follow_one_another(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(CheckpointError, match="expects batch 0"):
        ledger.append(entry(1, ledger))
    ledger.append(entry(0, ledger))
    with pytest.raises(CheckpointError, match="expects batch 1"):
        ledger.append(entry(2, ledger))


def test_a_broken_entry_is_told_with_its_path(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(entry(0, ledger))
    (path,) = (tmp_path / "batches").glob("*.json")
    path.write_text("{")
    with pytest.raises(CheckpointError, match=path.name):
        ledger.get(0)


def test_of_many_that_create_one_file_exactly_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda number: create(path, b"%04d" % number), range(200)))
    assert won.count(True) == 1
    assert path.read_bytes() == b"%04d" % won.index(True)
    assert [p.name for p in tmp_path.iterdir()] == ["one"]
