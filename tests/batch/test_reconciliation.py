"""Spark goes on where the ledger ends, whatever has become of Spark's own record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tidegate.batch.reconciliation import check_cut, reconcile
from tidegate.disk import Disk
from tidegate.errors import CheckpointError, FencedError
from tidegate.ledger.records import Cut, Entry
from tidegate.spark.checkpoint_files import CheckpointFiles

NAMES = ["rows", "files"]
CUTS: list[list[Any]] = [
    [None, None],
    [{"offset": 10}, None],
    [{"offset": 20}, {"logOffset": 0}],
    [{"offset": 30}, {"logOffset": 2}],
]
"""Where each batch begins; the next one is its end."""


def write(path: Path, *lines: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", *("-" if line is None else json.dumps(line) for line in lines)]))
    path.with_name(f".{path.name}.crc").write_bytes(b"of what Spark wrote")


def entry(batch_id: int) -> Entry:
    cuts = zip(NAMES, CUTS[batch_id], CUTS[batch_id + 1], strict=True)
    return Entry(batch_id, 1, {name: Cut(start, end) for name, start, end in cuts}, {}, {})


@pytest.fixture
def spark(tmp_path: Path) -> CheckpointFiles:
    """After batch 2, as Spark leaves it."""
    folder = tmp_path / "spark"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id": "one"}')
    for batch_id in range(3):
        write(folder / "offsets" / str(batch_id), {"conf": {}}, *CUTS[batch_id + 1])
        write(folder / "commits" / str(batch_id), {"nextBatchWatermarkMs": 0})
    for number in range(3):
        write(folder / "sources/1" / str(number), {"path": f"file-{number}", "batchId": number})
    return CheckpointFiles(folder)


def ends(spark: CheckpointFiles) -> list[Any]:
    """What a query begins with: the cut that is known last, and the one before."""
    last = spark.newest("offsets")
    return [spark.offsets(last - 1), spark.offsets(last)]


def test_what_agrees_stays_as_it_is(spark: CheckpointFiles) -> None:
    before = {path: path.read_bytes() for path in spark.folder.rglob("[!.]*") if path.is_file()}
    reconcile(spark, entry(2), NAMES)
    assert {path: path.read_bytes() for path in spark.folder.rglob("[!.]*") if path.is_file()} == before


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "zeros", "another end", "all gone", "older"])
def test_a_lost_cut_is_written_again(spark: CheckpointFiles, damage: str) -> None:
    newest = spark.folder / "offsets/2"
    match damage:
        case "missing":
            newest.unlink()
        case "empty":
            newest.write_bytes(b"")
        case "torn":
            newest.write_bytes(newest.read_bytes()[:-10])
        case "zeros":
            newest.write_bytes(bytes(100))
        case "another end":
            write(newest, {"conf": {}}, {"offset": 35}, {"logOffset": 2})
        case "all gone":
            for name in ("offsets", "commits"):
                shutil.rmtree(spark.folder / name)
            (spark.folder / "metadata").unlink()
        case "older":
            for name in ("offsets", "commits"):
                for number in (1, 2):
                    (spark.folder / name / str(number)).unlink()
    reconcile(spark, entry(2), NAMES)
    assert ends(spark) == CUTS[2:]
    # Brought once more, so that it is sure to be published.
    assert spark.newest("commits") < 2
    assert "id" in json.loads((spark.folder / "metadata").read_text())
    assert not list(spark.folder.glob("offsets/.*.crc")), "checksums of other content"


def test_a_cut_that_was_only_planned_is_kept(spark: CheckpointFiles) -> None:
    write(spark.folder / "sources/1/3", {"path": "file-3", "batchId": 3})
    write(spark.folder / "offsets/3", {"conf": {}}, {"offset": 40}, {"logOffset": 3})
    reconcile(spark, entry(2), NAMES)
    assert ends(spark) == [CUTS[3], [{"offset": 40}, {"logOffset": 3}]]


@pytest.mark.parametrize("torn", ["offsets/3", "sources/1/3"])
def test_a_cut_of_which_a_part_is_lost_is_planned_anew(spark: CheckpointFiles, torn: str) -> None:
    write(spark.folder / "sources/1/3", {"path": "file-3", "batchId": 3})
    write(spark.folder / "offsets/3", {"conf": {}}, {"offset": 40}, {"logOffset": 3})
    (spark.folder / torn).write_bytes(b"")
    reconcile(spark, entry(2), NAMES)
    assert ends(spark) == CUTS[2:]
    assert (spark.folder / "sources/1/3").exists() is (torn == "offsets/3")


def test_torn_leftovers_of_a_first_batch_are_removed(tmp_path: Path) -> None:
    spark = CheckpointFiles(tmp_path)
    for name in ("metadata", "offsets/0", "sources/1/0"):
        write(tmp_path / name)
        (tmp_path / name).write_bytes(b"")
    reconcile(spark, None, NAMES)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_list_beyond_a_lost_one_is_removed(spark: CheckpointFiles) -> None:
    """Spark would stumble over the gap. What the list names is read again, since it is in no batch."""
    write(spark.folder / "sources/1/4", {"path": "file-4", "batchId": 4})
    reconcile(spark, entry(2), NAMES)
    assert sorted(path.name for path in (spark.folder / "sources/1").glob("[0-9]*")) == ["0", "1", "2"]


def test_a_driver_that_was_replaced_removes_no_list_of_another_one(spark: CheckpointFiles) -> None:
    log = spark.folder / "sources/1/3"
    log.write_bytes(b"")

    def check_newest() -> None:
        raise FencedError("another driver has taken over")

    rename = spark.disk.rename

    class Late(Disk):
        def rename(self, source: Path, target: Path) -> None:
            write(log, {"path": "file-3", "batchId": 3})
            rename(source, target)

    with pytest.raises(FencedError):
        reconcile(CheckpointFiles(spark.folder, Late()), entry(2), NAMES, check_newest=check_newest)
    assert b"file-3" in log.read_bytes()
    assert not [
        path for path in log.parent.iterdir() if path.name.startswith(".3.") and path.suffix != ".crc"
    ]


def test_a_torn_commit_is_removed(spark: CheckpointFiles) -> None:
    (spark.folder / "commits/2").write_bytes(b"")
    reconcile(spark, entry(2), NAMES)
    assert spark.newest("commits") == 1


@pytest.mark.parametrize("lost", ["sources/1/2", "sources/1/0", "sources"])
def test_a_file_source_that_has_lost_its_list_is_refused(spark: CheckpointFiles, lost: str) -> None:
    path = spark.folder / lost
    shutil.rmtree(path) if path.is_dir() else path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="list of files that files has read"):
        reconcile(spark, entry(2), NAMES)


def test_a_compact_list_stands_for_those_before_it(spark: CheckpointFiles) -> None:
    for number in range(3):
        (spark.folder / "sources/1" / str(number)).unlink()
    write(spark.folder / "sources/1/2.compact", *({"path": f"file-{n}", "batchId": n} for n in range(3)))
    reconcile(spark, entry(2), NAMES)
    assert spark.newest("commits") == 2


@pytest.mark.parametrize("last", [None, entry(0), entry(1)])
def test_a_ledger_that_has_lost_its_newest_records_is_told(
    spark: CheckpointFiles, last: Entry | None
) -> None:
    with pytest.raises(CheckpointError, match=r"newest records of the ledger .*batch 2 was committed"):
        reconcile(spark, last, NAMES)


def test_a_replay_has_the_cut_of_the_ledger() -> None:
    check_cut(2, entry(2).cut, entry(2), entry(2))
    check_cut(0, entry(0).cut, None, None)
    check_cut(2, entry(2).cut, entry(1), None)
    later = {**entry(2).cut, "rows": Cut({"offset": 20}, {"offset": 35})}
    with pytest.raises(CheckpointError, match="batch 2 of rows"):
        check_cut(2, later, entry(2), entry(2))
    gap = {**entry(2).cut, "rows": Cut({"offset": 25}, {"offset": 30})}
    with pytest.raises(CheckpointError, match="rows would be lost"):
        check_cut(2, gap, entry(1), None)


def test_all_that_a_commit_depends_on_is_synced(spark: CheckpointFiles) -> None:
    done: list[str] = []

    class Watched(Disk):
        def sync_folder(self, folder: Path) -> None:
            done.append(str(folder.relative_to(spark.folder.parent)))

    CheckpointFiles(spark.folder, Watched()).sync(2, CUTS[2], CUTS[3])
    files = {"spark/offsets/2", "spark/sources/1/1", "spark/sources/1/2"}
    assert files <= set(done)
    # The names of new files and folders, too.
    assert {"spark/offsets", "spark/sources/1", "spark/sources", "spark", "."} <= set(done)
    assert max(map(done.index, files)) < done.index("spark/offsets")
