"""Discarding the state of one step of a checkpoint, on real runs and a real ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tidegate.batch.garbage import Garbage
from tidegate.cli.main import app
from tidegate.errors import CheckpointError, InUseError, StateError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut, Entry
from tidegate.run.checkpoint import Checkpoint
from tidegate.run.drop import drop
from tidegate.run.inspection import Inspection
from tidegate.run.lock import locked
from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.shard import Shard
from tidegate.state.table.evolution import evolved
from tidegate.state.table.table import NEVER, StateTable
from tidegate.storage.local import Local

KEY = pa.schema([("id", pa.int64())])
COUNTS = StateTable("counts", "value", KEY, pa.schema([("n", pa.int64())]))
LEFT = StateTable("pairs.left", "buffer", KEY, pa.schema([("v", pa.int64())]))
RIGHT = StateTable("pairs.right", "buffer", KEY, pa.schema([("w", pa.int64())]))
GROUPS = frozenset(range(4))
MEANING = {"counts": {"n": "count()"}, "pairs": {"on": "id"}}
IDS = range(64)


def rows(table: StateTable, value: int) -> pa.Table:
    hashes = [number << 58 for number in IDS]
    columns: list[Any] = [hashes, [NEVER] * 64, [False] * 64, IDS, [value] * 64]
    if table.kind == "buffer":
        del columns[2]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, table.written, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.written)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Three batches; the second one wrote only counts, the third only pairs."""
    folder = tmp_path / "checkpoint"
    ledger = Ledger(folder / "ledger")
    ledger.take_over()
    shard = Shard(Local(folder / "state"), name="g1-node", scratch=tmp_path / "scratch")
    tables = (COUNTS, LEFT, RIGHT)
    shard.begin(StateManifest(-1, 4, None, tables), GROUPS)
    for batch_id, written in enumerate(((COUNTS, LEFT, RIGHT), (COUNTS,), (LEFT,))):
        writes = {table.name: rows(table, batch_id) for table in written}
        runs = shard.prepare(batch_id, "1", writes, None).runs
        state = StateManifest(batch_id, 4, None, tables, runs)
        cut = {"source-1": Cut(batch_id, batch_id + 1)}
        ledger.append(
            Entry(batch_id, 1, cut, {"source-1": 7}, {"out": {"rows": 1}}, state=state, meaning=MEANING)
        )
        shard.commit(batch_id, None)
    shard.close()
    (folder / "pipeline.json").write_text('{"pipeline": "dropping", "sources": []}')
    return folder


def last(folder: Path) -> Entry:
    found = Ledger(folder / "ledger").last
    assert found is not None
    return found


def state_of(folder: Path) -> StateManifest:
    state = last(folder).state
    assert state is not None
    return state


def test_the_state_of_the_other_steps_stays_as_it_was(checkpoint: Path) -> None:
    before = last(checkpoint)
    missed = Inspection(checkpoint).verify().problems  # no Spark has written its part here
    dropped = drop(checkpoint, "pairs")
    assert (dropped.batch_id, dropped.tables) == (2, ("pairs.left", "pairs.right"))
    after = last(checkpoint)
    assert (after.batch_id, after.cut, after.event_times) == (before.batch_id, before.cut, before.event_times)
    assert after.receipts == before.receipts
    assert after.meaning == {"counts": MEANING["counts"]}
    assert after.generation > before.generation
    found = Inspection(checkpoint)
    assert [recorded.batch_id for recorded in found.batches] == [2, 1, 0]
    assert found.verify().problems == missed
    with found.opened(found.batch()) as reader:
        counts = pa.concat_tables(reader.pieces(reader.table("counts")))
        assert sorted(zip(counts["id"].to_pylist(), counts["n"].to_pylist(), strict=True)) == [
            (i, 1) for i in IDS
        ]
        with pytest.raises(StateError, match=r"no state table 'pairs.left'; it has: counts"):
            reader.table("pairs.left")
    with found.opened(found.batch(1)) as earlier:
        assert sum(piece.num_rows for piece in earlier.pieces(earlier.table("pairs.left"))) == 64


def test_the_step_may_come_back_as_another_one_and_begins_with_nothing(
    checkpoint: Path, tmp_path: Path
) -> None:
    other = StateTable(
        "pairs.left", "value", pa.schema([("name", pa.string())]), pa.schema([("x", pa.date32())])
    )
    with pytest.raises(CheckpointError, match=f"tidegate state drop {checkpoint} pairs"):
        evolved(state_of(checkpoint), (COUNTS, other, RIGHT), checkpoint)
    drop(checkpoint, "pairs")
    base = evolved(state_of(checkpoint), (COUNTS, other, RIGHT), checkpoint)
    shard = Shard(Local(checkpoint / "state"), name="g3-node", scratch=tmp_path / "other")
    shard.begin(base, GROUPS)
    assert shard.scan("pairs.left", GROUPS).num_rows == 0
    assert shard.scan("pairs.right", GROUPS).num_rows == 0
    assert shard.scan("counts", GROUPS).num_rows == 64
    shard.close()


def test_the_next_driver_keeps_what_was_written_anew(checkpoint: Path) -> None:
    drop(checkpoint, "pairs")
    ledger = Ledger(checkpoint / "ledger")
    ledger.take_over()
    Garbage(ledger, Local(checkpoint / "state"), retention=1).recover()
    there = {path.name for path in (checkpoint / "state").iterdir()}
    assert there == {run.name for run in state_of(checkpoint).runs}
    ledger.append(Entry(3, ledger.generation, {}, {}, {}))
    assert [entry.batch_id for entry in ledger.entries()] == [3, 2, 1, 0]


def test_one_step_after_the_other_until_nothing_is_left(checkpoint: Path) -> None:
    drop(checkpoint, "counts")
    drop(checkpoint, "pairs")
    assert (state_of(checkpoint).tables, state_of(checkpoint).runs) == ((), ())
    with pytest.raises(StateError, match="has no state of 'pairs'; it has state of: none"):
        drop(checkpoint, "pairs")


def test_nothing_is_dropped_while_a_driver_runs(checkpoint: Path) -> None:
    before = state_of(checkpoint)
    with locked(Checkpoint.at(checkpoint), take_over=False), pytest.raises(InUseError):
        drop(checkpoint, "pairs")
    assert state_of(checkpoint) == before


def test_a_driver_that_slept_meanwhile_is_shut_out(checkpoint: Path) -> None:
    sleeping = Ledger(checkpoint / "ledger")
    sleeping.take_over()
    drop(checkpoint, "pairs")
    assert Ledger(checkpoint / "ledger").generation > sleeping.generation


def test_a_step_that_is_unknown_is_told_with_those_that_are(checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["state", "drop", str(checkpoint), "count"])
    assert isinstance(result.exception, StateError)
    assert "it has state of: counts, pairs" in str(result.exception)


def test_the_command_says_what_it_did(checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["state", "drop", str(checkpoint), "pairs"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("discarded pairs.left, pairs.right: pairs has no state after batch 2")
