"""Setting back the watermark of a checkpoint, on real runs and a real ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tidegate.batch.time import moment
from tidegate.cli.main import app
from tidegate.errors import CheckpointError, InUseError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut, Entry
from tidegate.run.checkpoint import Checkpoint
from tidegate.run.inspection import Inspection
from tidegate.run.lock import locked, take_over_stopped
from tidegate.run.reset import reset
from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.shard import Shard
from tidegate.state.table.table import NEVER, StateTable
from tidegate.storage.local import Local

COUNTS = StateTable("counts", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
HOUR = 3_600_000_000
NOW = round(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1e6)
FAR = round(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1e6)
DUE = [NOW + HOUR, FAR + HOUR, NEVER, NEVER]
"""A window that the watermark has passed, one that it has not, and two keys that stay."""


def rows(value: int) -> pa.Table:
    columns = [[number << 62 for number in range(4)], DUE, [False] * 4, range(4), [value] * 4]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, COUNTS.written, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COUNTS.written)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two batches; in the second one the watermark has run away."""
    folder = tmp_path / "checkpoint"
    ledger = Ledger(folder / "ledger")
    ledger.take_over()
    shard = Shard(Local(folder / "state"), name="g1-node", scratch=tmp_path / "scratch")
    shard.begin(StateManifest(-1, 4, None, (COUNTS,)), frozenset(range(4)))
    for batch_id, watermark in enumerate((NOW, FAR)):
        runs = shard.prepare(batch_id, "1", {"counts": rows(batch_id)}, watermark).runs
        state = StateManifest(batch_id, 4, watermark, (COUNTS,), runs)
        times = {"doors": FAR + HOUR, "lamps": NOW - HOUR}
        cut = {"doors": Cut(batch_id, batch_id + 1)}
        receipts = {"out": {"rows": 1}}
        ledger.append(
            Entry(batch_id, 1, cut, times, receipts, state=state, watermark=watermark, furthest=FAR)
        )
        shard.commit(batch_id, watermark)
    shard.close()
    (folder / "pipeline.json").write_text('{"pipeline": "runaway", "sources": []}')
    return folder


def last(folder: Path) -> Entry:
    found = Ledger(folder / "ledger").last
    assert found is not None
    return found


def ids(folder: Path) -> list[tuple[int, int]]:
    found = Inspection(folder)
    with found.opened(found.batch()) as reader:
        kept = pa.concat_tables(reader.pieces(COUNTS))
        return sorted(zip(kept["id"].to_pylist(), kept["n"].to_pylist(), strict=True))


def test_what_was_closed_stays_closed_and_the_rest_stays_as_it_was(checkpoint: Path) -> None:
    before = last(checkpoint)
    assert reset(checkpoint, datetime.fromtimestamp(NOW / 1e6, UTC)) == 1
    after = last(checkpoint)
    assert (after.batch_id, after.cut, after.receipts) == (before.batch_id, before.cut, before.receipts)
    assert after.generation > before.generation, "a driver that slept meanwhile commits nothing"
    assert after.watermark == NOW
    assert after.event_times == {"doors": NOW, "lamps": NOW - HOUR}
    assert after.furthest is None
    assert ids(checkpoint) == [(1, 1), (2, 1), (3, 1)], "the window that is over does not come back to life"


def test_it_is_only_set_back_and_never_under_a_driver(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is 2100-01-01.*it can only be set back"):
        reset(checkpoint, datetime(2200, 1, 1, tzinfo=UTC))
    with locked(Checkpoint.at(checkpoint), take_over=False), pytest.raises(InUseError):
        reset(checkpoint, datetime(2026, 1, 1, tzinfo=UTC))
    assert last(checkpoint).watermark == FAR


def test_a_driver_that_went_on_without_the_lock_is_noticed(checkpoint: Path) -> None:
    ledger, running = Ledger(checkpoint / "ledger"), Ledger(checkpoint / "ledger")
    running.take_over()
    running.append(replace(last(checkpoint), batch_id=2, generation=running.generation))
    with (
        locked(Checkpoint.at(checkpoint), take_over=False) as lock,
        pytest.raises(CheckpointError, match="a driver is running"),
    ):
        take_over_stopped(ledger, lock)


def test_the_command_shows_it_and_sets_it_back(checkpoint: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["state", "watermark", str(checkpoint)]).output
    assert "watermark: 2100-01-01 00:00:00+00:00, after batch 1" in shown
    assert f"lamps: newest event time {moment(NOW - HOUR)}" in shown
    wrong = runner.invoke(app, ["state", "watermark", str(checkpoint), "--reset", "today"])
    assert wrong.exit_code == 2
    done = runner.invoke(app, ["state", "watermark", str(checkpoint), "--reset", "2026-01-31T12:00:00Z"])
    assert "after batch 1 the watermark is 2026-01-31 12:00:00+00:00" in done.output
    assert last(checkpoint).watermark == NOW
