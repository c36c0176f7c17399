"""The output of a files sink without Spark, in a folder and in an object store: its chain of manifests,
compaction, and crashes at every step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType, YearMonthIntervalType

import tidegate as tg
from tidegate.disk import Disk
from tidegate.errors import SinkError
from tidegate.sinks import compaction, output_copy
from tidegate.sinks.committed import verify
from tidegate.sinks.compaction import Compaction, due
from tidegate.sinks.data import parquet_form
from tidegate.sinks.data.folder_files import FolderFiles
from tidegate.sinks.data.store_files import StoreFiles
from tidegate.sinks.files import Files, _Writer
from tidegate.sinks.manifest import OutputManifest, Span, effective
from tidegate.sinks.output_folder import OutputFolder
from tidegate.sinks.sink import Attempt, Receipt
from tidegate.storage.local import Local
from tidegate.storage.place import local_folder, open_storage
from tidegate.storage.remote import Remote
from tidegate.storage.storage import Storage

SCHEMA = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers end here, machines do not: nothing has to wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where outputs may be."""
    if request.param == "folder":
        return str(tmp_path)
    place: str = request.getfixturevalue("s3_place")
    return place


@pytest.fixture
def folder(out: str) -> OutputFolder:
    return prepared(f"{out}/out")


@pytest.fixture
def local(tmp_path: Path) -> OutputFolder:
    """An output in a folder, for what is special about that."""
    return prepared(str(tmp_path / "out"))


def prepared(place: str) -> OutputFolder:
    folder = OutputFolder(place)
    folder.files.prepare()
    return folder


def in_sight(folder: OutputFolder) -> Storage:
    """Where any reader looks."""
    return open_storage(folder.place)


def data_of(folder: OutputFolder) -> Storage:
    """Where the data files are that a manifest names, once they are in sight."""
    files = folder.files
    return Local(files.data) if isinstance(files, FolderFiles) else in_sight(folder)


def names_in_sight(folder: OutputFolder) -> list[str]:
    return [name for name in in_sight(folder).names() if name.endswith((".parquet", ".json"))]


def left_over(folder: OutputFolder) -> list[object]:
    """What attempts and merges have left behind."""
    return [*folder.files.staged(), *folder.files.drafts()]


def replaced(folder: OutputFolder) -> list[str]:
    return open_storage(folder.place).within("_tidegate").within("replaced").names()


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def opened(folder: OutputFolder, committed: int = -1, receipt: Receipt | None = None) -> _Writer:
    writer = _Writer(Compaction(folder), "parquet", "test", remote=False)
    writer.recover(committed, receipt, generation=2)
    compacted(writer)
    return writer


def compacted(writer: _Writer) -> None:
    """Wait for what is compacted in the background."""
    writer._compacting.join()


def stage(folder: OutputFolder, attempt: Attempt, part: str, content: bytes) -> None:
    """Write a file of an attempt as Spark or a task does."""
    storage, name = folder.files.staged_in(attempt, part)
    storage.write(name, [content])


def written(writer: _Writer, folder: OutputFolder, batch_id: int, *parts: list[int]) -> Receipt:
    """Stage rows as `write` does, without Spark."""
    attempt = Attempt(batch_id, 1, 0)
    for number, ids in enumerate(parts):
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        stage(folder, attempt, f"part-{number}.parquet", parquet(rows))
    newest = writer._newest
    return {
        "attempt": str(attempt),
        "path": folder.place,
        "rows": sum(map(len, parts)),
        "files": [f"part-{number}.parquet" for number in range(len(parts))],
        "schema": SCHEMA,
        "after": list(newest) if newest else None,
    }


def publish(folder: OutputFolder, batches: range) -> Receipt:
    """Publish a row per batch, the number of the batch; the receipt of the last one."""
    headers = folder.headers()
    writer = opened(folder, headers[-1].last if headers else -1)
    for batch_id in batches:
        receipt = written(writer, folder, batch_id, [batch_id])
        writer.publish(batch_id, receipt)
    compacted(writer)
    return receipt


def ids(folder: OutputFolder) -> list[int]:
    found: list[int] = tg.read(folder.place)["id"].to_pylist()
    return found


def seen_by_others(folder: OutputFolder) -> list[int]:
    place = in_sight(folder)
    files = [pq.read_table(pa.BufferReader(place.open(name))) for name in names_in_sight(folder)]
    return sorted(id for rows in files for id in rows["id"].to_pylist())


def manifest_of(batch_id: int) -> str:
    return Span(batch_id, batch_id).name


@pytest.mark.parametrize("lost", range(4))
def test_manifest_that_was_deleted_is_noticed(folder: OutputFolder, lost: int) -> None:
    receipt = publish(folder, range(4))
    folder.manifests.delete(manifest_of(lost))
    with pytest.raises(SinkError, match=rf"batch {lost}.*\. Restore the folder from a copy"):
        tg.read(folder.place)
    assert any(f"batch {lost}" in problem for problem in verify(folder.place))
    if lost < 3:
        with pytest.raises(SinkError, match=rf"batch {lost + 1} follows batch {lost}"):
            opened(folder, 3, receipt)
    else:  # The ledger still knows all that the manifest said.
        opened(folder, 3, receipt)
        assert ids(folder) == [0, 1, 2, 3]


def test_newest_manifests_that_were_deleted_are_noticed_at_the_start(folder: OutputFolder) -> None:
    receipt = publish(folder, range(4))
    for lost in (2, 3):
        folder.manifests.delete(manifest_of(lost))
    with pytest.raises(SinkError, match=r"batches up to 3 is missing from .*it ends with batch 1"):
        opened(folder, 3, receipt)


def test_newest_manifest_of_dead_letters_is_noticed_at_the_start(folder: OutputFolder) -> None:
    """The last batch had none, so the ledger says nothing of them."""
    publish(folder, range(3))
    folder.manifests.delete(manifest_of(2))
    with pytest.raises(SinkError, match="the manifest of batch 2 is missing"):
        opened(folder, 7)


@pytest.mark.parametrize("place", [5, -5])
def test_manifest_that_was_damaged_is_noticed(folder: OutputFolder, place: int) -> None:
    receipt = publish(folder, range(3))
    content = bytearray(folder.manifests.open(manifest_of(2)).to_pybytes())
    content[place] ^= 1
    folder.manifests.write(manifest_of(2), [bytes(content)])
    for look in (lambda: tg.read(folder.place), lambda: opened(folder, 2, receipt)):
        with pytest.raises(SinkError, match=r"000000000002\.json .*checksum does not match"):
            look()
    assert any("000000000002.json" in problem for problem in verify(folder.place))


def test_manifest_that_was_cut_off_is_noticed(folder: OutputFolder) -> None:
    publish(folder, range(3))
    content = folder.manifests.open(manifest_of(1)).to_pybytes()
    for size in (0, 10, len(content) - 1):
        folder.manifests.write(manifest_of(1), [content[:size]])
        with pytest.raises(SinkError, match=r"000000000001\.json"):
            tg.read(folder.place)


def test_manifest_of_another_output_is_noticed(folder: OutputFolder, out: str) -> None:
    publish(folder, range(3))
    other = prepared(f"{out}/other")
    writer = opened(other)
    writer.publish(1, written(writer, other, 1, [100]))
    other.manifests.copy(manifest_of(1), folder.manifests, manifest_of(1))
    with pytest.raises(SinkError, match="damaged"):
        tg.read(folder.place)


def test_data_file_that_is_missing_is_noticed(folder: OutputFolder) -> None:
    publish(folder, range(3))
    assert verify(folder.place) == []
    lost = data_of(folder).names()[1]
    data_of(folder).delete(lost)
    with pytest.raises(SinkError, match=lost):
        tg.read(folder.place)
    assert [lost in problem for problem in verify(folder.place)] == [True]


def test_data_file_that_lost_rows_is_noticed(folder: OutputFolder) -> None:
    publish(folder, range(3))
    nothing = parquet(pa.table({"id": pa.array([], pa.int64())}))
    data_of(folder).write(data_of(folder).names()[1], [nothing])
    with pytest.raises(SinkError, match="2 rows, but 3 were committed"):
        tg.read(folder.place)
    assert verify(folder.place) == [
        f"the files of batches 000000000001 in {folder.place} hold 0 rows, not 1",
    ]


def test_batches_without_output_leave_no_gap(folder: OutputFolder) -> None:
    """As dead letters, which only some batches have."""
    writer = opened(folder, 4)
    for batch_id in (5, 9, 120):
        writer.publish(batch_id, written(writer, folder, batch_id, [batch_id]))
    assert ids(folder) == [5, 9, 120]
    assert verify(folder.place) == []


def test_folder_of_an_earlier_version_is_refused(local: OutputFolder, tmp_path: Path) -> None:
    (tmp_path / "out" / "_manifests").mkdir()
    for look in (lambda: tg.read(local.place), lambda: opened(local)):
        with pytest.raises(SinkError, match="written by an earlier version"):
            look()


def test_place_without_hard_links_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(SinkError, match=r"cannot write to .*/out: .*no hard links .*another file system"):
        Files(tmp_path / "out").check()
    assert not list(tmp_path.rglob(".probe*"))


def test_files_that_are_not_committed_are_out_of_sight(folder: OutputFolder) -> None:
    publish(folder, range(3))
    writer = opened(folder, 2)
    receipt = written(writer, folder, 3, [3], [4])
    assert seen_by_others(folder) == [0, 1, 2]
    writer.publish(3, receipt)
    assert seen_by_others(folder) == [0, 1, 2, 3, 4]


def test_what_a_power_cut_took_out_of_sight_is_shown_again(local: OutputFolder) -> None:
    """Links are not waited for: those of the last batches may be gone."""
    receipt = publish(local, range(4))
    in_sight(local).delete(*names_in_sight(local)[1:3])
    opened(local, 3, receipt)
    assert seen_by_others(local) == [0, 1, 2, 3]


@pytest.mark.s3
def test_what_a_crash_kept_out_of_sight_is_shown_at_the_next_start(s3_place: str) -> None:
    """Even if its manifest was compacted since, and another attempt left a file, too."""
    folder = prepared(s3_place)
    publish(folder, range(3))
    files = folder.files
    assert isinstance(files, StoreFiles)
    hidden = folder.load(Span(1, 1)).files[0]
    files.root.copy(hidden, files.staging, hidden)
    files.root.delete(hidden)
    folder.append(
        OutputManifest.compacted(
            [folder.load(Span(n, n)) for n in range(3)],
            [name for n in range(3) for name in folder.load(Span(n, n)).files],
        )
    )
    stage(folder, Attempt(1, 1, 7), "part-0.parquet", b"of an attempt that came to nothing")
    assert ids(folder) == [0, 1, 2]
    assert seen_by_others(folder) == [0, 2]
    opened(folder, 2)
    assert ids(folder) == seen_by_others(folder) == [0, 1, 2]
    assert left_over(folder) == []


# Compaction


def test_links_are_durable_before_a_compacted_manifest_stands_for_their_batches(
    local: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(local, range(4))
    monkeypatch.setattr(compaction, "FAN_IN", 4)
    happened: list[str] = []
    sync, link, remove = Disk.sync_folder, Disk.link, Disk.remove

    def syncing(disk: Disk, place: Path) -> None:
        sync(disk, place)
        happened.append(f"sync {place.name}")

    def linking(disk: Disk, source: Path, target: Path) -> None:
        link(disk, source, target)
        place = target.parent.name
        happened.append(f"link {target.name if place == 'manifests' else place}")

    def removing(disk: Disk, path: Path) -> None:
        remove(disk, path)
        happened.append(f"remove {path.name}")

    monkeypatch.setattr(Disk, "sync_folder", syncing)
    monkeypatch.setattr(Disk, "link", linking)
    monkeypatch.setattr(Disk, "remove", removing)
    Compaction(local, target=1 << 20).run()
    compacted_at, merged_at = happened.index(f"link {Span(0, 3).name}"), happened.index("link out")
    removed_at = happened.index(f"remove {Span(0, 0).name}")
    assert "sync out" in happened[:compacted_at]
    assert "sync out" in happened[merged_at:removed_at]


def test_effective_manifests_are_those_that_no_other_stands_for() -> None:
    spans = [Span(0, 0), Span(1, 1), Span(0, 1), Span(0, 3), Span(4, 4), Span(4, 5), Span(6, 6)]
    assert effective(spans) == [Span(0, 3), Span(4, 5), Span(6, 6)]


def test_groups_are_due_when_they_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 10)

    def single(*numbers: int) -> list[Span]:
        return [Span(number, number) for number in numbers]

    assert list(due([])) == []
    assert list(due(single(*range(9)))) == []
    assert list(due(single(*range(10)))) == [single(*range(10))]
    assert list(due(single(3, 7, 12))) == [single(3, 7)]
    assert list(due([Span(0, 9), *single(10)])) == []
    tens = [Span(start, start + 9) for start in range(0, 100, 10)]
    assert list(due(tens)) == [tens]
    assert list(due(tens[:9])) == []
    assert list(due([Span(0, 57), *single(58, 59, 60)])) == [single(58, 59)]


def test_compaction_keeps_the_chain(folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    publish(folder, range(13))
    Compaction(folder).run()
    assert sorted(folder.spans()) == [Span(0, 8), Span(9, 11), Span(12, 12)]
    assert ids(folder) == list(range(13))
    assert verify(folder.place) == []
    receipt = publish(folder, range(13, 14))
    opened(folder, 13, receipt)
    folder.manifests.delete(Span(9, 11).name)
    with pytest.raises(SinkError, match="batch 12 follows batch 11"):
        tg.read(folder.place)
    with pytest.raises(SinkError, match="batch 12 follows batch 11"):
        opened(folder, 13, receipt)


def test_compaction_does_not_hide_a_gap(folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder, range(6))
    folder.manifests.delete(manifest_of(4))
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    with pytest.raises(SinkError, match="batch 5 follows batch 4"):
        Compaction(folder).run()
    with pytest.raises(SinkError, match="batch 5 follows batch 4"):
        tg.read(folder.place)


def test_work_of_compaction_does_not_grow_faster_than_what_has_waited(
    local: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a long time in which a damaged file or a full disk was in the way."""
    publish(local, range(90))
    looks = 0
    holds = Span.holds

    def counting(self: Span, other: Span) -> bool:
        nonlocal looks
        looks += 1
        return holds(self, other)

    monkeypatch.setattr(Span, "holds", counting)
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    Compaction(local).run()
    assert sorted(local.spans()) == [Span(0, 80), Span(81, 89)]
    assert looks < 10 * 90


def test_thousands_of_batches_leave_few_manifests(
    local: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and reads of a start are counted; they stay the same from the first thousands to the last."""
    opens = 0
    header = OutputFolder._header

    def counting(self: OutputFolder, span: Span) -> Any:
        nonlocal opens
        opens += 1
        return header(self, span)

    monkeypatch.setattr(OutputFolder, "_header", counting)
    writer, after_start = opened(local), []
    for batch_id in range(2000):
        writer.publish(batch_id, written(writer, local, batch_id))
        if batch_id % 600 == 550:
            compacted(writer)
            opens = 0
            writer = opened(local, batch_id)
            after_start.append((opens, len(local.manifests.names())))
    compacted(writer)
    assert max(opens for opens, _ in after_start) <= 3 * compaction.FAN_IN
    assert max(files for _, files in after_start) <= 2 * compaction.FAN_IN
    assert left_over(local) == []
    assert verify(local.place) == []
    assert local.headers()[-1].last == 1999


@pytest.mark.parametrize("target", [None, 1 << 20])
def test_reader_keeps_up_with_compaction(
    target: int | None, folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if files are gone as soon as they are merged."""
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    batches = 300 if isinstance(folder.files, FolderFiles) else 30
    publish(folder, range(1))
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(tg.read(folder.place).num_rows)

    writer = _Writer(Compaction(folder, target, grace=0.0), "parquet", "test", remote=False)
    writer.recover(0, None, generation=2)
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for batch_id in range(1, batches):
            writer.publish(batch_id, written(writer, folder, batch_id, [batch_id]))
    finally:
        done.set()
        reader.join()
        compacted(writer)
    assert seen
    assert seen == sorted(seen)
    assert ids(folder) == seen_by_others(folder) == list(range(batches))


# Merging small files


def merging(folder: OutputFolder, grace: float = 3600.0) -> Compaction:
    return Compaction(folder, target=1 << 20, grace=grace)


def test_small_files_are_merged_in_one_step(folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    publish(folder, range(7))
    merging(folder).run()
    assert len(names_in_sight(folder)) == 3
    assert ids(folder) == seen_by_others(folder) == list(range(7))
    assert verify(folder.place) == []
    publish(folder, range(7, 9))
    merging(folder).run()
    assert folder.spans() == [Span(0, 8)]
    assert len(names_in_sight(folder)) == 1
    assert ids(folder) == seen_by_others(folder) == list(range(9))
    assert left_over(folder) == []


def test_reader_of_replaced_files_gets_to_the_end(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, range(3))
    names = [name for record in folder.chain() for name in record.files]
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    merging(folder).run()
    files = [pa.BufferReader(folder.files.fetch(name)) for name in names]
    assert [pq.read_table(file)["id"].to_pylist() for file in files] == [[0], [1], [2]]
    merging(folder, grace=0.0).run()
    for name in names:
        with pytest.raises(FileNotFoundError):
            folder.files.fetch(name)
    assert replaced(folder) == []
    assert len(data_of(folder).names()) == 1
    assert ids(folder) == seen_by_others(folder) == [0, 1, 2]


def test_files_with_other_columns_are_not_merged(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 4)
    writer = opened(folder)
    for batch_id in range(4):
        receipt = written(writer, folder, batch_id, [batch_id])
        if batch_id > 1:
            table = pa.table({"id": pa.array([batch_id], pa.int64()), "word": ["new"]})
            stage(folder, Attempt.parse(receipt["attempt"]), "part-0.parquet", parquet(table))
        writer.publish(batch_id, receipt)
    merging(folder).run()
    files = [pa.BufferReader(in_sight(folder).open(name)) for name in names_in_sight(folder)]
    assert [pq.read_schema(file).names for file in files] == [["id"], ["id", "word"]]
    assert ids(folder) == [0, 1, 2, 3]


def test_columns_that_cannot_be_merged_are_refused() -> None:
    what = "cannot be merged"
    parquet_form.check(StructType.fromJson(SCHEMA), what=what)
    schema = StructType().add("a.b %", "long").add("age", YearMonthIntervalType())
    with pytest.raises(SinkError, match=r"column age, which is interval year to month, cannot be merged"):
        parquet_form.check(schema, what=what)


def test_lines_of_json_are_merged(folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    writer = opened(folder)
    for batch_id in range(3):
        receipt = written(writer, folder, batch_id)
        stage(folder, Attempt.parse(receipt["attempt"]), "part-0.json", f'{{"id":{batch_id}}}\n'.encode())
        writer.publish(batch_id, receipt | {"files": ["part-0.json"], "rows": 1})
    merging(folder).run()
    (merged,) = names_in_sight(folder)
    assert in_sight(folder).open(merged).to_pybytes() == b'{"id":0}\n{"id":1}\n{"id":2}\n'
    assert ids(folder) == [0, 1, 2]


def test_merging_survives_a_crash_at_every_step(
    out: str, monkeypatch: pytest.MonkeyPatch, chance: Random
) -> None:
    def act(folder: OutputFolder) -> Callable[[], None]:
        monkeypatch.setattr(compaction, "FAN_IN", 100)
        publish(folder, range(4))
        monkeypatch.setattr(compaction, "FAN_IN", 2)
        return lambda: merging(folder).run()

    for folder in crashes(out, act, chance):
        assert ids(folder) == list(range(4))
        assert set(seen_by_others(folder)) == set(range(4))
        merging(folder).run()
        merging(folder, grace=0.0).run()
        assert folder.spans() == [Span(0, 3)]
        assert ids(folder) == seen_by_others(folder) == list(range(4))
        assert verify(folder.place) == []
        (record,) = folder.chain()
        assert [name for name in data_of(folder).names() if name[0].isdigit()] == sorted(record.files)
        assert [*left_over(folder), *replaced(folder)] == []


def test_driver_that_was_replaced_cannot_commit_a_merge_that_was_cleaned_up(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has merged files and is held up before the manifest; its successor removes what it left behind."""
    publish(folder, range(3))
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    append = OutputFolder.append

    def held_up(self: OutputFolder, record: Any) -> bool:
        monkeypatch.setattr(OutputFolder, "append", append)
        merging(folder).run()
        return append(self, record)

    monkeypatch.setattr(OutputFolder, "append", held_up)
    merging(folder).run()
    assert ids(folder) == seen_by_others(folder) == [0, 1, 2]
    assert verify(folder.place) == []


def test_compaction_ends_when_the_sink_is_closed(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, range(3))
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    writer = _Writer(merging(folder), "parquet", "test", remote=False)
    writer.close()
    writer.recover(2, None, generation=2)
    writer.close()
    assert len(folder.spans()) == 3
    assert left_over(folder) == []


# Copies


@pytest.mark.parametrize("batch_id", [4, 7])
def test_copy_ends_with_a_batch(
    folder: OutputFolder, out: str, monkeypatch: pytest.MonkeyPatch, batch_id: int
) -> None:
    """Wherever compaction has got to meanwhile."""
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    publish(folder, range(8))
    Compaction(folder).run()
    assert Span(3, 5) in folder.spans()
    copied = OutputFolder(f"{out}/copy")
    output_copy.copy(folder, copied, batch_id)
    publish(copied, range(batch_id + 1, 10))
    assert ids(copied) == seen_by_others(copied) == list(range(10))
    assert verify(copied.place) == []


def test_copy_waits_for_the_end_of_what_was_merged(
    folder: OutputFolder, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    publish(folder, range(7))
    merging(folder).run()
    with pytest.raises(FileNotFoundError, match="holds rows of batches up to 5"):
        output_copy.copy(folder, OutputFolder(f"{out}/early"), 4)
    copied = OutputFolder(f"{out}/copy")
    output_copy.copy(folder, copied, 5)
    publish(copied, range(6, 8))
    assert ids(copied) == seen_by_others(copied) == list(range(8))
    assert verify(copied.place) == []


def test_copy_has_a_batch_that_is_not_published_yet(folder: OutputFolder, out: str) -> None:
    publish(folder, range(2))
    writer = opened(folder, 1)
    receipt = written(writer, folder, 2, [2])
    for name in ("staged", "moved"):
        copied = prepared(f"{out}/{name}")
        output_copy.copy(folder, copied, 2)
        assert ids(copied) == [0, 1]
        opened(copied, 2, receipt)
        assert ids(copied) == [0, 1, 2]
        folder.files.settle(Attempt.parse(receipt["attempt"]), receipt["files"], receipt["files"])


# Crashes


class Crash(BaseException):
    """The driver ends here."""


CHANGES: dict[type, tuple[str, ...]] = {
    Disk: ("create", "link", "rename", "remove", "sync_folder"),
    Remote: ("write", "create", "copy", "delete"),
}


@contextmanager
def crash_at(step: int) -> Iterator[None]:
    """End the driver before its n-th change of the disk or the store."""
    steps = count()

    def replaced(change: Callable[..., Any]) -> Callable[..., Any]:
        def crashing(*args: Any, **kwargs: Any) -> Any:
            if next(steps) >= step:  # Nothing of a driver goes on: others may be at work side by side.
                raise Crash
            return change(*args, **kwargs)

        return crashing

    with pytest.MonkeyPatch.context() as patch:
        for kind, changes in CHANGES.items():
            for name in changes:
                patch.setattr(kind, name, replaced(getattr(kind, name)))
        yield


def crashes(
    out: str, act: Callable[[OutputFolder], Callable[[], None]], chance: Random
) -> Iterator[OutputFolder]:
    """The folder after a crash at each step of an act, and at last after all of it; in a store, where that
    takes longer, at each fifth step."""
    steps = count() if local_folder(out) else count(chance.randrange(5), 5)
    for step in steps:
        folder = prepared(f"{out}/out-{step}")
        ready = act(folder)
        try:
            with crash_at(step):
                ready()
        except Crash:
            yield folder
        else:
            assert step > 3
            yield folder
            return


def test_publishing_survives_a_crash_at_every_step(out: str, chance: Random) -> None:
    receipts: dict[str, Receipt] = {}

    def act(folder: OutputFolder) -> Callable[[], None]:
        publish(folder, range(2))
        writer = opened(folder, 1)
        receipt = receipts[folder.place] = written(writer, folder, 2, [2], [3])
        return lambda: writer.publish(2, receipt)

    for folder in crashes(out, act, chance):
        assert ids(folder) in ([0, 1], [0, 1, 2, 3])
        assert set(seen_by_others(folder)) <= {0, 1, 2, 3}
        restarted = opened(folder, 2, receipts[folder.place])
        restarted.publish(2, receipts[folder.place])
        assert ids(folder) == seen_by_others(folder) == [0, 1, 2, 3]
        assert left_over(folder) == []
        restarted.publish(3, written(restarted, folder, 3, [4]))
        assert ids(folder) == [0, 1, 2, 3, 4]
        assert verify(folder.place) == []


def test_compaction_survives_a_crash_at_every_step(
    out: str, monkeypatch: pytest.MonkeyPatch, chance: Random
) -> None:
    def act(folder: OutputFolder) -> Callable[[], None]:
        publish(folder, range(9))
        monkeypatch.setattr(compaction, "FAN_IN", 3)
        return lambda: Compaction(folder).run()

    for folder in crashes(out, act, chance):
        assert ids(folder) == seen_by_others(folder) == list(range(9))
        opened(folder, 8)
        assert folder.spans() == [Span(0, 8)]
        publish(folder, range(9, 10))
        assert ids(folder) == seen_by_others(folder) == list(range(10))
        assert verify(folder.place) == []
        monkeypatch.setattr(compaction, "FAN_IN", 100)


def test_driver_that_was_replaced_does_no_harm(folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It publishes its last batch when its successor has published that and more, and compacted them."""
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    held_up = opened(folder)
    receipt = written(held_up, folder, 0, [0])
    successor = opened(folder, 0, receipt)
    for batch_id in range(1, 3):
        successor.publish(batch_id, written(successor, folder, batch_id, [batch_id]))
    Compaction(folder).run()
    held_up.publish(0, receipt)
    assert ids(folder) == seen_by_others(folder) == [0, 1, 2]
    Compaction(folder).run()
    assert folder.spans() == [Span(0, 2)]


def test_files_are_on_disk_before_the_manifest_names_them(
    local: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[tuple[str, str]] = []
    sync, link = Disk.sync_folder, Disk.link

    def syncing(disk: Disk, place: Path) -> None:
        sync(disk, place)
        happened.append(("sync", place.name))

    def linking(disk: Disk, source: Path, target: Path) -> None:
        link(disk, source, target)
        happened.append(("link", target.parent.name))

    writer = opened(local)
    receipt = written(writer, local, 0, [0])
    monkeypatch.setattr(Disk, "sync_folder", syncing)
    monkeypatch.setattr(Disk, "link", linking)
    writer.publish(0, receipt)
    assert happened == [("sync", "data"), ("link", "manifests"), ("sync", "manifests"), ("link", "out")]
