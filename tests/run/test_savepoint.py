"""A savepoint is a checkpoint: what is started from it ends in the state of an undisturbed run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate import config
from tidegate.control.client import ControlClient
from tidegate.errors import CheckpointError, StateError
from tidegate.ledger.ledger import Ledger
from tidegate.rescale.model import Ask
from tidegate.run.inspection import Inspection
from tidegate.run.savepoint import save
from tidegate.state.table.rows import encoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

START = datetime(2024, 1, 1, tzinfo=UTC).isoformat()
SOME, ALL = 1500, 3000


def counting(rows: int) -> tg.Pipeline:
    p = tg.Pipeline("count")
    source = tg.sources.Sensors(sensors=50, rate=tg.sources.Constant(100), rows=rows, start=START, seed=1)
    p.source(source).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    return p


def finish(
    pipeline: tg.Pipeline,
    checkpoint: Path,
    listener: Callable[[tg.BatchProgress], None] | None = None,
    **overrides: Any,
) -> list[int]:
    """Run it until it is done; the batches that it committed."""
    settings = {
        "engine.interval": "100 ms",
        "engine.checkpoint": str(checkpoint),
        "admission.initial_rows": 1000,
        "admission.max_rows": 1000,
        **{name.replace("__", "."): value for name, value in overrides.items()},
    }
    told: list[int] = []

    def listen(progress: tg.BatchProgress) -> None:
        told.append(progress.batch_id)
        if listener is not None:
            listener(progress)

    effective = config.load(code=pipeline.config, environ={}, overrides=settings)
    pipeline.run(config=effective, listeners=[listen], until_done=True)
    return told


def state_of(checkpoint: Path) -> str:
    found = Inspection(checkpoint)
    with found.opened(found.batch()) as reader:
        table = reader.table("aggregate-1")
        rows = pa.concat_tables([table.schema.empty_table(), *reader.pieces(table)])
        return sha256(b"".join(sorted(encoded(rows)))).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state after all rows."""
    checkpoint = tmp_path_factory.mktemp("undisturbed") / "checkpoint"
    finish(counting(ALL), checkpoint)
    return state_of(checkpoint)


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a pipeline with two nodes that stopped in the middle."""
    checkpoint = tmp_path_factory.mktemp("stopped") / "checkpoint"
    finish(counting(SOME), checkpoint, state__nodes=2)
    return checkpoint


def last_of(checkpoint: Path) -> int:
    last = Ledger(checkpoint / "ledger").last
    assert last is not None
    return last.batch_id


@pytest.mark.parametrize(
    ("nodes", "backend", "parallelism"), [(3, "columnar", 3), (1, "memory", 1), (2, "rocksdb", 4)]
)
def test_it_is_started_with_other_nodes_and_another_backend(
    stopped: Path, undisturbed: str, tmp_path: Path, nodes: int, backend: str, parallelism: int
) -> None:
    at = save(stopped, tmp_path / "saved")
    assert at == last_of(stopped)
    batches = finish(
        counting(ALL),
        tmp_path / "saved",
        state__nodes=nodes,
        state__backend=backend,
        engine__parallelism=parallelism,
    )
    assert batches[0] == at + 1
    assert state_of(tmp_path / "saved") == undisturbed
    assert state_of(stopped) != undisturbed


def test_it_may_be_taken_while_state_is_on_its_way(undisturbed: str, tmp_path: Path) -> None:
    checkpoint, saved = tmp_path / "checkpoint", tmp_path / "saved"
    usual: dict[str, Any] = {"state__nodes": 2, "state__transfer": "peer"}

    def move_and_save(progress: tg.BatchProgress) -> None:
        client = ControlClient.find(checkpoint)
        if progress.batch_id == 2:
            client.apply(Ask(nodes=3, strategy="lazy"))
        elif progress.rescale == "moving" and not saved.exists():
            client.savepoint(str(saved))
            client.stop()

    slowly = {f"admission__{name}_rows": 40 for name in ("min", "initial", "max")}
    finish(counting(ALL), checkpoint, move_and_save, **usual, **slowly)
    assert state_of(saved) != undisturbed
    finish(counting(ALL), saved, state__nodes=1)
    assert state_of(saved) == undisturbed
    finish(counting(ALL), checkpoint, **usual)
    assert state_of(checkpoint) == undisturbed


def test_where_spark_has_not_noted_the_last_batch_it_goes_on_all_the_same(
    stopped: Path, undisturbed: str, tmp_path: Path
) -> None:
    """As after a crash between the ledger's commit and Spark's; a cut beyond it is planned anew."""
    crashed = shutil.copytree(stopped, tmp_path / "crashed")
    last = last_of(crashed)
    spark = crashed / "spark"
    (spark / "commits" / str(last)).unlink()
    at = save(crashed, tmp_path / "saved", settle=0)
    assert at == last
    copied = tmp_path / "saved" / "spark"
    assert sorted(path.name for path in (copied / "commits").iterdir()) == [str(last - 1)]
    assert sorted(path.name for path in (copied / "offsets").iterdir()) == [str(last - 1), str(last)]
    finish(counting(ALL), tmp_path / "saved")
    assert state_of(tmp_path / "saved") == undisturbed


def test_a_cut_beyond_the_last_committed_batch_is_left_behind(stopped: Path, tmp_path: Path) -> None:
    running = shutil.copytree(stopped, tmp_path / "running")
    last = last_of(running)
    offsets = running / "spark" / "offsets"
    shutil.copyfile(offsets / str(last), offsets / str(last + 1))
    save(running, tmp_path / "saved")
    assert not (tmp_path / "saved" / "spark" / "offsets" / str(last + 1)).exists()


def test_it_can_be_taken_again_and_again_while_the_pipeline_runs(
    spark: SparkSession, undisturbed: str, tmp_path: Path
) -> None:
    taken: list[tuple[int, Path]] = []
    failures: list[Exception] = []
    started, ended = threading.Event(), threading.Event()

    def saving() -> None:
        started.wait()
        while not ended.is_set() and len(taken) < 50:
            dest = tmp_path / f"saved-{len(taken)}"
            try:
                taken.append((save(tmp_path / "checkpoint", dest), dest))
            except Exception as error:
                failures.append(error)
                return

    thread = threading.Thread(target=saving)
    thread.start()
    try:
        finish(
            counting(ALL),
            tmp_path / "checkpoint",
            lambda _: started.set(),
            admission__initial_rows=200,
            admission__max_rows=200,
            state__retention=2,
        )
    finally:
        started.set()
        ended.set()
        thread.join()
    assert not failures
    assert all(last_of(dest) == at for at, dest in taken)
    assert all(not Inspection(dest).verify().problems for _, dest in taken)
    between = [(at, dest) for at, dest in taken if 0 < at < last_of(tmp_path / "checkpoint")]
    assert between, "none was taken in mid-run: nothing was tested"
    at, dest = between[len(between) // 2]
    assert finish(counting(ALL), dest)[0] == at + 1
    assert state_of(dest) == undisturbed


def words(folder: Path) -> tg.Pipeline:
    p = tg.Pipeline("words")
    source = tg.sources.Files(folder, format="json", schema="word string")
    p.source(source).key_by("word").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    return p


def counts_of(checkpoint: Path) -> dict[str, int]:
    found = Inspection(checkpoint)
    with found.opened(found.batch()) as reader:
        pieces = list(reader.pieces(reader.table("aggregate-1")))
    return {row["word"]: row["n.count"] for piece in pieces for row in piece.to_pylist()}


def test_files_that_were_read_and_dead_letters_come_along(spark: SparkSession, tmp_path: Path) -> None:
    """What was read before the savepoint is not read again, and what came after it is."""
    given = tmp_path / "in"
    given.mkdir()
    (given / "1.json").write_text('{"word": "a"}\n{"word": "b"}\nbroken\n')
    finish(words(given), tmp_path / "checkpoint")
    save(tmp_path / "checkpoint", tmp_path / "saved")
    (given / "2.json").write_text('{"word": "a"}\nbroken, too\n')
    for checkpoint in (tmp_path / "checkpoint", tmp_path / "saved"):
        finish(words(given), checkpoint)
        assert counts_of(checkpoint) == {"a": 2, "b": 1}
        letters = tg.read(checkpoint / "dead-letters" / "source-1")
        assert letters["raw"].to_pylist() == ["broken", "broken, too"]


def test_everything_is_on_disk_before_it_can_be_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses its power after the rename has all of the savepoint, in whichever folder."""
    given = tmp_path / "in"
    given.mkdir()
    (given / "1.json").write_text('{"word": "a"}\nbroken\n')
    finish(words(given), tmp_path / "checkpoint")
    dest = tmp_path / "new" / "deep" / "saved"
    happened: list[tuple[int, int] | str] = []
    fsync, rename = os.fsync, Path.rename

    def syncing(handle: int) -> None:
        fsync(handle)
        happened.append(identity(os.fstat(handle)))

    def renaming(path: Path, target: Path) -> Path:
        if target == dest:
            happened.append("seen")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "rename", renaming)
    save(tmp_path / "checkpoint", dest)
    seen = happened.index("seen")
    before, after = set(happened[:seen]), set(happened[seen:])
    parts = [dest, *dest.rglob("*")]
    assert {"state", "ledger", "spark", "dead-letters"} <= {path.name for path in parts}
    assert [path for path in parts if identity(path.stat()) not in before] == []
    above = [tmp_path, tmp_path / "new", tmp_path / "new" / "deep"]
    assert [path for path in above if identity(path.stat()) not in after] == []
    # A folder is synced after the last name was made in it.
    for path in parts:
        if path.is_dir() and any(path.iterdir()):
            last = max(happened.index(identity(inside.stat())) for inside in path.iterdir())
            assert identity(path.stat()) in happened[last:seen], path


def identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def test_runs_are_linked_and_stay_when_the_checkpoint_is_deleted(stopped: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(stopped, tmp_path / "checkpoint")
    save(checkpoint, tmp_path / "saved")
    runs = Inspection(tmp_path / "saved").batch().manifest.runs
    assert {path.name for path in (tmp_path / "saved" / "state").iterdir()} == {run.name for run in runs}
    for run in runs:
        assert (tmp_path / "saved" / "state" / run.name).samefile(checkpoint / "state" / run.name)
    before = state_of(checkpoint)
    shutil.rmtree(checkpoint)
    assert state_of(tmp_path / "saved") == before


def test_where_links_are_not_possible_runs_are_copied(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def refuse_runs(source: Path, target: Path) -> None:
        if str(source).endswith(".run"):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(os, "link", refuse_runs)
    monkeypatch.setattr("tidegate.storage.storage._PART", 1000)
    save(stopped, tmp_path / "saved")
    assert state_of(tmp_path / "saved") == state_of(stopped)
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "saved" / "state").iterdir())


def test_when_the_pipeline_goes_on_and_deletes_a_run_it_begins_again(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = shutil.copytree(stopped, tmp_path / "checkpoint")
    link = os.link
    moved: list[str] = []

    def go_on_first(source: Path, target: Path) -> None:
        if str(source).endswith(".run") and not moved:
            moved.append(source.name)
            go_on(checkpoint, source.name)
        link(source, target)

    monkeypatch.setattr(os, "link", go_on_first)
    assert save(checkpoint, tmp_path / "saved") == last_of(stopped) + 1
    assert moved[0] not in {path.name for path in (tmp_path / "saved" / "state").iterdir()}
    assert state_of(tmp_path / "saved") == state_of(stopped)


def go_on(checkpoint: Path, name: str) -> None:
    """What a pipeline does that commits a batch without rows, and has another run in the place of one."""
    ledger = Ledger(checkpoint / "ledger")
    last = ledger.last
    assert last is not None
    after = last.batch_id + 1
    (checkpoint / "state" / name).rename(checkpoint / "state" / f"new-{name}")
    for log in ("offsets", "commits"):
        folder = checkpoint / "spark" / log
        shutil.copyfile(folder / str(last.batch_id), folder / str(after))
    assert last.state is not None
    runs = tuple(replace(run, name=f"new-{name}") if run.name == name else run for run in last.state.runs)
    ledger.append(replace(last, batch_id=after, state=replace(last.state, batch_id=after, runs=runs)))


def test_what_is_there_is_not_overwritten(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="already exists"):
        save(stopped, tmp_path)


def test_damage_is_found_and_nothing_is_left(stopped: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(stopped, tmp_path / "checkpoint")
    name = Inspection(checkpoint).batch().manifest.runs[0].name
    content = bytearray((checkpoint / "state" / name).read_bytes())
    content[200] ^= 1
    (checkpoint / "state" / name).write_bytes(content)
    with pytest.raises(StateError, match=name):
        save(checkpoint, tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_ledger_and_spark_must_belong_together(stopped: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(stopped, tmp_path / "checkpoint")
    (checkpoint / "spark" / "offsets" / str(last_of(checkpoint))).unlink()
    with pytest.raises(CheckpointError, match="do not match"):
        save(checkpoint, tmp_path / "saved")


def test_there_must_be_something_to_save(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        save(checkpoint, tmp_path / "saved")
    checkpoint.mkdir()
    (checkpoint / "pipeline.json").write_text(json.dumps({"pipeline": "new", "sources": []}))
    with pytest.raises(CheckpointError, match="nothing to save yet"):
        save(checkpoint, tmp_path / "saved")
