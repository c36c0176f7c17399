"""Outputs of a batch, and what they wait for."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tests.conftest import Run
from tidegate.batch.job import synced
from tidegate.batch.outputs import Outputs
from tidegate.disk import Disk
from tidegate.ledger.records import Cut
from tidegate.pipeline.plan import Plan
from tidegate.sinks.files import _Writer
from tidegate.sinks.sink import Sink
from tidegate.spark.checkpoint_files import CheckpointFiles


class Slow(Disk):
    """It gives others time to go ahead before a file is on disk."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.written = threading.Event()

    def sync_file(self, path: Path) -> None:
        self.written.wait(0.5)
        self.happened.append("sync")

    def write(self) -> None:
        self.happened.append("write")
        self.written.set()


@pytest.mark.parametrize("first", [True, False])
def test_cut_is_on_disk_before_rows_are_shown_and_beside_rows_that_are_staged(
    first: bool, tmp_path: Path
) -> None:
    disk = Slow()
    files = CheckpointFiles(tmp_path, disk)
    files.cut_file(0).parent.mkdir()
    files.cut_file(0).write_text("v1\n{}\n7")
    with (
        ThreadPoolExecutor(1) as pool,
        synced(files, 0, {"source-1": Cut(None, 7)}, pool, first=first),
    ):
        disk.write()
    assert disk.happened == (["sync", "write"] if first else ["write", "sync"])


class Full(Disk):
    def sync_file(self, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("first", [True, False])
def test_an_attempt_fails_when_its_cut_is_not_on_disk(first: bool, tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path, Full())
    files.cut_file(0).parent.mkdir()
    files.cut_file(0).write_text("v1\n{}\n7")
    written = []
    with (
        pytest.raises(OSError, match="No space left"),
        ThreadPoolExecutor(1) as pool,
        synced(files, 0, {"source-1": Cut(None, 7)}, pool, first=first),
    ):
        written.append("rows")
    assert written == ([] if first else ["rows"])


def plan(*sinks: Sink) -> Plan:
    p = tg.Pipeline("some")
    rows = p.source(tg.sources.Sensors())
    for sink in sinks:
        rows.sink(sink)
    return p.plan()


@pytest.mark.parametrize(
    ("sink", "staged"),
    [
        (tg.sinks.Files("out"), True),
        (tg.sinks.Postgres("postgresql://db", "rows"), True),
        (tg.sinks.Kafka("host:9092", "rows"), False),
        (tg.sinks.ForEachBatch(lambda rows, batch_id: None), False),
    ],
)
def test_outputs_are_staged_when_every_sink_stages(sink: Sink, staged: bool) -> None:
    steps = plan(tg.sinks.Discard(), sink).sinks
    assert Outputs(dict.fromkeys(steps)).staged == staged  # type: ignore[arg-type]


@pytest.mark.spark
def test_functions_are_called_when_the_cut_is_on_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a power cut could take the cut of a batch that somebody has seen."""
    disk = Slow()
    sync = CheckpointFiles.sync

    def slowly(*args: object) -> None:
        disk.sync_file(Path())
        sync(*args)  # type: ignore[arg-type]

    def function(rows: object, batch_id: int) -> None:
        rows.count()  # type: ignore[attr-defined]
        disk.write()

    monkeypatch.setattr(CheckpointFiles, "sync", slowly)
    p = tg.Pipeline("shown")
    p.source(tg.sources.Sensors(rate=None, rows=10)).sink(tg.sinks.ForEachBatch(function))
    run(p)
    assert disk.happened[:2] == ["sync", "write"]


def test_dead_letters_are_compacted(tmp_path: Path) -> None:
    """A source may have some in every batch."""
    local: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    p = tg.Pipeline("broken")
    p.source(tg.sources.Files(tmp_path, schema="id bigint")).sink(tg.sinks.Discard())
    with Outputs.opened(p.plan(), local, str(tmp_path / "dead")) as outputs:
        (writer,) = (outputs.writers[source] for source in p.plan().sources)
        assert isinstance(writer, _Writer)
        assert writer._compaction.target is not None
