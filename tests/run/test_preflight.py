"""What is found wrong before Java starts."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.errors import CheckpointError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.run import preflight
from tidegate.run.checkpoint import Checkpoint
from tidegate.state.log.manifest import StateManifest
from tidegate.state.table.evolution import check_meaning
from tidegate.state.table.table import StateTable

MEANING = {"aggregate-1": {"n": "count()", "key columns": "id", "window": "none"}}


def counting(folder: Path, *, window: bool = False, name: str | None = None) -> tg.Pipeline:
    p = tg.Pipeline("counting")
    rows = p.source(tg.sources.Files(folder, schema="id bigint, at timestamp", event_time="at")).key_by("id")
    rows = rows.named(name) if name else rows
    counted = rows.window(tg.tumbling("4 s")).aggregate if window else rows.aggregate
    counted(n=tg.agg.count()).sink(tg.sinks.Discard())
    return p


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One with the state of a count that was committed."""
    ledger = Ledger(tmp_path / "checkpoint" / "ledger")
    ledger.take_over()
    keys, values = pa.schema({"id": pa.int64()}), pa.schema({"n.count": pa.int64()})
    state = StateManifest(0, 256, None, (StateTable("aggregate-1", "value", keys, values),))
    ledger.append(Entry(0, ledger.generation, {}, {}, {}, state=state, meaning=MEANING))
    return tmp_path / "checkpoint"


def test_a_missing_folder_is_told_with_the_source_and_its_line(tmp_path: Path) -> None:
    with pytest.raises(tg.PipelineError, match=f"no folder {tmp_path / 'missing'}") as caught:
        preflight.check_places(counting(tmp_path / "missing").plan())
    assert caught.value.step == "source-1"
    assert caught.value.where is not None


def test_a_folder_without_files_is_said_and_no_error(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        preflight.check_places(counting(folder).plan())
    assert caplog.messages == [f"source-1: no files in {folder} yet"]


def test_a_sink_out_of_reach_is_told_with_its_line(folder: Path) -> None:
    (folder / "a.json").write_text("{}")
    p = tg.Pipeline("nowhere")
    rows = p.source(tg.sources.Files(folder, schema="id bigint"))
    rows.sink(tg.sinks.Kafka("127.0.0.1:1", "topic"))
    with pytest.raises(tg.PipelineError, match=r"127\.0\.0\.1:1") as caught:
        preflight.check_places(p.plan())
    assert caught.value.step == "sink-1"


def test_the_same_steps_are_fine(folder: Path, checkpoint: Path) -> None:
    preflight.check_state(counting(folder).plan(), Checkpoint.at(checkpoint))


def test_state_that_went_with_its_nodes_is_told(folder: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "lost" / "ledger")
    ledger.take_over()
    ledger.append(Entry(0, ledger.generation, {}, {}, {}, durable=False))
    with pytest.raises(CheckpointError, match=r"state\.durable off"):
        preflight.check_state(counting(folder).plan(), Checkpoint.at(tmp_path / "lost"))


def test_a_ledger_without_its_newest_record_is_told_and_left_as_it_is(folder: Path, checkpoint: Path) -> None:
    ledger = checkpoint / "ledger"
    (checkpoint / "spark/commits").mkdir(parents=True)
    (checkpoint / "spark/commits/0").touch()
    preflight.check_state(counting(folder).plan(), Checkpoint.at(checkpoint))
    max(ledger.glob("*.json")).unlink()
    before = sorted(ledger.iterdir())
    with pytest.raises(CheckpointError, match="newest records of the ledger are missing"):
        preflight.check_state(counting(folder).plan(), Checkpoint.at(checkpoint))
    assert sorted(ledger.iterdir()) == before


def test_a_step_that_has_changed_is_told(folder: Path, checkpoint: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"aggregate-1 has changed .* had none for 'window' and now has tumbl"
    ):
        preflight.check_state(counting(folder, window=True).plan(), Checkpoint.at(checkpoint))


def test_an_aggregate_that_is_gone_is_told(folder: Path, checkpoint: Path) -> None:
    p = tg.Pipeline("counting")
    rows = p.source(tg.sources.Files(folder, schema="id bigint")).key_by("id")
    rows.aggregate(m=tg.agg.count()).sink(tg.sinks.Discard())
    with pytest.raises(CheckpointError, match=r"had count\(\) for 'n' and now has nothing"):
        preflight.check_state(p.plan(), Checkpoint.at(checkpoint))


def test_another_key_is_told(folder: Path, checkpoint: Path) -> None:
    p = tg.Pipeline("counting")
    rows = p.source(tg.sources.Files(folder, schema="id bigint, site bigint")).key_by("site")
    rows.aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    with pytest.raises(CheckpointError, match="had id for 'key columns' and now has site"):
        preflight.check_state(p.plan(), Checkpoint.at(checkpoint))


def test_windows_after_a_join_with_another_delay_are_told(folder: Path) -> None:
    """Their state says when it is due, by the delay of before; the join itself may have been dropped."""

    def after(delay: str) -> tg.Pipeline:
        p = tg.Pipeline("paired")
        rows = p.source(tg.sources.Files(folder, schema="id bigint, at timestamp", event_time="at"))
        pairs = rows.interval_join(rows.select("id", other="at"), on="id", after=delay)
        pairs.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
        return p

    before = {name: parts for name, parts in after("5 s").plan().meaning.items() if name == "aggregate-1"}
    with pytest.raises(CheckpointError, match="had 5 s for 'delay by joins' and now has 9 s"):
        check_meaning(before, after("9 s").plan().meaning, folder)


def test_state_of_a_step_that_is_gone_is_told(folder: Path, checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="holds state of aggregate-1"):
        preflight.check_state(counting(folder, name="counts").plan(), Checkpoint.at(checkpoint))
