"""Merging: few runs, nothing that does not count, and no state changed by it."""

from __future__ import annotations

import threading
from dataclasses import replace
from math import log2
from pathlib import Path

import pyarrow as pa
import pytest

from tests.state.shard_kit import (
    ALL,
    BUFFER,
    COUNT,
    EMPTY,
    LEFT,
    RIGHT,
    TABLE,
    Driver,
    Make,
    keys,
    rows,
    values,
)
from tidegate.state.log import run
from tidegate.state.log.compaction import MOST_RUNS, chosen, merged_rows
from tidegate.state.log.log import Log, Snapshot
from tidegate.state.log.manifest import RunRef, StateManifest, together
from tidegate.storage.local import Local
from tidegate.storage.memory import Memory


def test_merging_leaves_files_alone_and_ignores_what_others_own(make: Make, tmp_path: Path) -> None:
    driver = Driver(make())
    for number in range(8):
        driver.batch({"counts": rows(range(number, 60), number)})
    names = set(Local(tmp_path / "log").names())
    left, right = Driver(make(), driver.base, LEFT), Driver(make(), driver.base, RIGHT)
    assert left.shard.compact()
    runs = left.batch({}).runs
    assert len(runs) == 1
    assert runs[0].groups == LEFT
    assert runs[0].sequence == 7
    assert runs[0].rows == left.shard.scan("counts", LEFT).num_rows
    assert right.batch({}).runs == driver.base.restricted(RIGHT).runs
    assert names < set(Local(tmp_path / "log").names())


def test_what_another_owner_merged_away_stays_away_when_its_groups_come_back(make: Make) -> None:
    whole = Driver(make()).batch({"counts": rows(range(60), 1, due=50)})
    left, right = Driver(make(), whole, LEFT), Driver(make(), whole, RIGHT)
    mine = right.shard.scan("counts", RIGHT)["id"].to_pylist()
    for _ in range(3):
        right.batch({"counts": rows(mine, gone=True)})
        left.batch({})
    assert right.shard.compact()
    assert right.batch({}).runs == ()
    back = Driver(make(), replace(left.base, runs=together([left.batch({}).runs, right.base.runs])))
    others = set(range(60)) - set(mine)
    assert set(values(back.shard.get("counts", keys(range(60))))) == others
    assert set(values(back.shard.due("counts", ALL, 50))) == others
    assert set(values(back.shard.scan("counts", ALL))) == others


def test_a_merge_that_no_manifest_has_yet_is_done_again_after_an_abandoned_batch(make: Make) -> None:
    driver = Driver(make())
    for number in range(4):
        driver.batch({"counts": rows([number], number)})
    assert driver.shard.compact()
    driver.shard.prepare(4, "1", {"counts": rows([9], 9)}, None)
    driver.shard.begin(driver.base, ALL)
    assert values(driver.shard.scan("counts", ALL)) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert len(driver.batch({"counts": rows([8], 8)}).runs) == 2


def test_a_row_that_is_over_does_not_bring_back_an_older_one(make: Make) -> None:
    driver = Driver(make())
    driver.batch({"counts": rows(range(2000), 1)})
    for number in range(4):
        driver.batch({"counts": rows([1], 2 + number, due=5)}, 1)
    driver.batch({"counts": rows([2], gone=True)}, 10)
    assert driver.shard.compact()
    assert len(driver.batch({}, 10).runs) == 2  # the large one is still there
    assert values(driver.shard.get("counts", keys([1, 2, 3]))) == {3: 1}


def test_merging_everything_drops_what_does_not_count(make: Make) -> None:
    driver = Driver(make())
    driver.batch({"counts": rows(range(10), due=50), "events": rows(range(10), due=5, table=BUFFER)}, 0)
    driver.batch({"counts": rows(range(5), gone=True)}, 0)
    driver.batch({"counts": rows([7], due=6)}, 0)
    driver.batch({"events": rows([1], due=20, table=BUFFER)}, 8)
    assert driver.shard.compact()
    (merged,) = driver.batch({}, 8).runs
    assert merged.rows == 5  # counts 5, 6, 8, 9 and one event


def test_runs_whose_rows_are_all_over_are_let_go(make: Make) -> None:
    driver = Driver(make())
    for number in range(3):
        driver.batch({"events": rows([number], due=number, table=BUFFER)}, number - 1)
    assert driver.shard.compact()
    assert [ref.sequence for ref in driver.batch({}, 2).runs] == [2]
    assert driver.shard.compact()
    assert driver.batch({}, 2).runs == ()


def test_a_merge_that_leaves_nothing_writes_nothing(make: Make, tmp_path: Path) -> None:
    driver = Driver(make())
    for gone in (False, True, True, True):
        driver.batch({"counts": rows([1, 2], gone=gone)})
    before = Local(tmp_path / "log").names()
    assert driver.shard.compact()
    assert Local(tmp_path / "log").names() == before
    assert driver.batch({}).runs == ()
    assert driver.shard.scan("counts", ALL).num_rows == 0


def test_a_commit_just_when_a_merge_ends_leaves_the_merged_run(make: Make) -> None:
    driver = Driver(make(durable=False))
    for number in range(4):
        driver.batch({"counts": rows([number], number)})
    lock, merger = driver.shard._lock, threading.get_ident()

    class Watched:
        """Whenever the merge lets go of the lock, a whole batch gets in before it goes on."""

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            if threading.get_ident() == merger:
                other = threading.Thread(target=driver.batch, args=({},))
                other.start()
                other.join()

    driver.shard._lock = Watched()  # type: ignore[assignment]
    assert driver.shard.compact()
    driver.shard._lock = lock
    driver.shard.begin(driver.base, ALL)
    assert values(driver.shard.scan("counts", ALL)) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert len(driver.batch({}).runs) == 1


def test_disk_stays_within_three_snapshots_when_a_tenth_is_rewritten_again_and_again(make: Make) -> None:
    driver = Driver(make(durable=False))
    snapshot = driver.batch({"counts": rows(range(10_000))}).runs[0].bytes
    retained: list[StateManifest] = []
    largest = 0
    for number in range(300):
        retained = [*retained[-3:], driver.batch({"counts": rows(range(1000), number)})]
        driver.shard.compact()
        files = {ref.name: ref.bytes for manifest in retained for ref in manifest.runs}
        largest = max(largest, sum(files.values()))
    assert largest <= 3 * snapshot
    assert values(driver.shard.get("counts", keys([0, 999, 1000]))) == {0: 299, 999: 299, 1000: 0}


@pytest.mark.parametrize("batches", [100, 2_000, 20_000])
def test_few_runs_at_a_logarithmic_price(batches: int) -> None:
    runs: list[RunRef] = []
    written = 0
    for number in range(batches):
        runs.append(RunRef("", number, ALL, 0, 100))
        taken = chosen(runs)
        if taken:
            size = sum(ref.bytes for ref in runs[-taken:])
            written += size
            runs[-taken:] = [RunRef("", number, ALL, 0, size)]
        assert len(runs) <= MOST_RUNS
    assert written <= 100 * batches * log2(batches)


def test_a_merge_holds_a_bounded_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECTION_ROWS", 500)
    log = Log(Memory(), memory=1 << 20, durable=True)
    refs = []
    for number in range(4):
        part = rows(range(20_000), number).sort_by("_hash")
        refs.append(log.write(f"{number}.run", [(TABLE, part)], sequence=number, groups=ALL, count=COUNT))
    snapshot = Snapshot(log, replace(EMPTY, runs=tuple(refs)), ALL, tuple(refs))
    content = merged_rows(snapshot, snapshot.pairs(), bottom=True, budget=200_000, rest=lambda: None)
    parts = [part for _, part in content]
    assert len(parts) > 5
    assert max(part.nbytes for part in parts) < 200_000
    merged = pa.concat_tables(parts)
    assert merged["n"].unique().to_pylist() == [3]
    assert (
        merged["_hash"]
        .combine_chunks()
        .equals(rows(range(20_000)).sort_by("_hash")["_hash"].combine_chunks())
    )
