"""Spark's checkpoint is made anew on another machine from the ledger and from what a store has kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import FencedError
from tidegate.spark.checkpoint_copy import CheckpointCopy
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.storage.memory import Memory

START, END = [{"offset": 10}, {"logOffset": 1}, {"topic": {"0": 5}}], [{"offset": 20}, {"logOffset": 2}, None]


def write(path: Path, *lines: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", *("-" if line is None else json.dumps(line) for line in lines)]))


class Machine:
    """One driver's Spark checkpoint, and what it keeps of it."""

    def __init__(self, folder: Path, store: Memory, generation: int, *, plans: bool = False) -> None:
        self.files = CheckpointFiles(folder)
        self.copy = CheckpointCopy(self.files, store, generation, plans)

    def plan(self, batch_id: int, *ends: Any) -> None:
        write(self.files.cut_file(batch_id), {"batchTimestampMs": 1}, *ends)

    def take(self, number: int, *names: str, compact: bool = False) -> None:
        suffix = ".compact" if compact else ""
        write(self.files.folder / f"sources/1/{number}{suffix}", *({"path": name} for name in names))

    def logs(self) -> dict[str, str]:
        folder = self.files.folder / "sources/1"
        names = sorted(self.files.disk.names(folder))
        return {name: "".join(json.loads(line)["path"] for line in lines(folder / name)) for name in names}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:]


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def one(tmp_path: Path, store: Memory) -> Machine:
    """Batches 0 to 2 are committed."""
    machine = Machine(tmp_path / "one", store, 1)
    for number, name in enumerate("abc"):
        machine.take(number, name)
        machine.copy.sync(number, [None], [None, {"logOffset": number}])
    return machine


def test_it_begins_after_the_last_batch_with_the_list_of_files(
    one: Machine, store: Memory, tmp_path: Path
) -> None:
    two = Machine(tmp_path / "two", store, 2)
    two.copy.restore(2, START, END, finished=False)
    assert two.logs() == {"0": "a", "1": "b", "2": "c"}
    assert (two.files.offsets(1), two.files.offsets(2)) == (START, END)
    assert (two.files.newest("commits"), two.files.newest("offsets")) == (1, 2)
    assert "id" in json.loads((two.files.folder / "metadata").read_text())


def test_a_batch_that_is_over_is_not_brought_again(one: Machine, store: Memory, tmp_path: Path) -> None:
    two = Machine(tmp_path / "two", store, 2)
    two.copy.restore(2, START, END, finished=True)
    assert two.files.finished() == 2


def test_what_an_earlier_run_has_left_on_the_machine_is_not_believed(one: Machine, store: Memory) -> None:
    one.plan(7, {"offset": 70}, {"logOffset": 7}, None)
    one.take(3, "of a batch that never was")
    again = Machine(one.files.folder, store, 2)
    again.copy.restore(2, START, END, finished=False)
    assert again.files.newest("offsets") == 2
    assert again.logs() == {"0": "a", "1": "b", "2": "c"}


def test_a_list_of_a_batch_that_was_not_committed_is_left_out_and_then_replaced(
    one: Machine, store: Memory, tmp_path: Path
) -> None:
    one.take(3, "early")
    one.copy.sync(3, [None], [None, {"logOffset": 3}])
    two = Machine(tmp_path / "two", store, 2)
    two.copy.restore(2, START, END, finished=False)
    assert "3" not in two.logs()
    two.take(3, "d")
    two.copy.sync(3, [None], [None, {"logOffset": 3}])
    # The first one was slow: this arrives when its batch has been committed by the second.
    one.copy._there[1].pop("3")
    one.copy.sync(3, [None], [None, {"logOffset": 3}])
    three = Machine(tmp_path / "three", store, 3)
    three.copy.restore(3, START, [None, {"logOffset": 3}], finished=False)
    assert three.logs()["3"] == "d"


def test_lists_that_a_compact_one_stands_for_go_when_it_is_committed(
    one: Machine, store: Memory, tmp_path: Path
) -> None:
    one.take(3, "a", "b", "c", "d", compact=True)
    for _ in range(2):  # The first attempt fails.
        one.copy.sync(3, [None], [None, {"logOffset": 3}])
    two = Machine(tmp_path / "two", store, 2)
    two.copy.restore(2, START, END, finished=False)
    assert two.logs() == {"0": "a", "1": "b", "2": "c"}, "its batch may not be committed"
    one.take(4, "e")
    one.copy.sync(4, [None], [None, {"logOffset": 4}])
    three = Machine(tmp_path / "three", store, 3)
    three.copy.restore(4, START, [None, {"logOffset": 4}], finished=False)
    assert three.logs() == {"3.compact": "abcd", "4": "e"}
    assert len(store.within("sources-1").names()) == 2


def test_in_the_steady_state_the_store_is_not_asked(one: Machine, store: Memory, monkeypatch: Any) -> None:
    """But for new lists of files."""
    asked: list[str] = []
    for action in ("write", "create", "open", "names", "delete"):
        monkeypatch.setattr(Memory, action, lambda *args, action=action: asked.append(action))
    for batch_id in range(3, 10):
        one.copy.sync(batch_id, [None], [{"offset": 10 * batch_id}, {"logOffset": 2}])
    assert asked == []


def test_a_cut_that_rows_were_shown_of_stays_the_same(store: Memory, tmp_path: Path) -> None:
    one = Machine(tmp_path / "one", store, 1, plans=True)
    one.plan(0, {"offset": 10}, None)
    one.plan(1, {"offset": 20}, None)
    one.copy.sync(0, [None], [{"offset": 10}, None])
    one.copy.sync(1, [{"offset": 10}], [{"offset": 20}, None])
    one.copy.sync(1, [{"offset": 10}], [{"offset": 20}, None])
    assert store.names() == ["plan-1"]
    two = Machine(tmp_path / "two", store, 2, plans=True)
    two.copy.restore(0, [None, None], [{"offset": 10}, None], finished=False)
    assert two.files.offsets(1) == [{"offset": 20}, None]
    assert two.files.finished() == 0
    two.copy.sync(1, [{"offset": 10}], [{"offset": 20}, None])


def test_of_two_that_plan_a_batch_the_first_one_decides(store: Memory, tmp_path: Path) -> None:
    one, two = (Machine(tmp_path / name, store, 1, plans=True) for name in ("one", "two"))
    one.plan(0, {"offset": 10})
    two.plan(0, {"offset": 15})
    one.copy.sync(0, [None], [{"offset": 10}])
    with pytest.raises(FencedError, match="planned by another driver"):
        two.copy.sync(0, [None], [{"offset": 15}])


def test_a_driver_that_was_held_up_leaves_the_lists_of_its_successor_alone(
    one: Machine, store: Memory, tmp_path: Path
) -> None:
    """It goes on between taking over and looking at what is there, when others have committed since."""
    two, three = Machine(tmp_path / "two", store, 2), Machine(tmp_path / "three", store, 3)
    three.copy.restore(2, START, END, finished=False)
    for number, name in ((3, "d"), (4, "e")):
        three.take(number, name)
        three.copy.sync(number, [None], [None, {"logOffset": number}])
    before = store.within("sources-1").names()
    with pytest.raises(FencedError, match=r"generation 3.* this one \(generation 2\) has been replaced"):
        two.copy.restore(2, START, END, finished=False)
    assert store.within("sources-1").names() == before


def test_a_driver_that_was_held_up_leaves_the_plans_of_its_successor_alone(
    store: Memory, tmp_path: Path
) -> None:
    two, three = (Machine(tmp_path / str(number), store, number, plans=True) for number in (2, 3))
    three.copy.restore(-1, [None], [None], finished=False)
    for batch_id in range(3):
        three.plan(batch_id, {"offset": batch_id})
        three.copy.sync(batch_id, [None], [{"offset": batch_id}])
    with pytest.raises(FencedError, match="has planned later batches"):
        two.copy.restore(0, [None], [{"offset": 0}], finished=False)
    assert store.names() == ["plan-2"]
