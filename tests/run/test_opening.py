"""What a run has opened is closed again, whatever fails on the way to the first batch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import sensors
from tidegate.control.controls import Controls
from tidegate.errors import CheckpointError, ControlError, PipelineError, SinkError
from tidegate.rescale.model import Ask
from tidegate.run.checkpoint import Checkpoint
from tidegate.run.lock import DriverLock
from tidegate.run.runner import Runner
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter

pytestmark = pytest.mark.spark


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Watched(Sink):
    """Drops its rows, and notes what is done with it."""

    log: list[str] = field(default_factory=list, compare=False)
    on_open: Callable[[], None] = nothing
    on_check: Callable[[], None] = nothing
    on_recover: Callable[[], None] = nothing
    on_write: Callable[[], None] = nothing

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        self.on_open()
        self.log.append("opened")
        return WatchedWriter(self)

    def describe(self) -> str:
        return "Watched"


@dataclass
class WatchedWriter(SinkWriter):
    sink: Watched

    def check(self, rows: DataFrame) -> None:
        self.sink.on_check()

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        self.sink.on_write()
        return {"rows": rows.count()}

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        pass

    def recover(
        self, committed: int, receipt: Receipt | None = None, *, generation: int | None = None
    ) -> None:
        self.sink.on_recover()

    def close(self) -> None:
        self.sink.log.append("closed")


def failing() -> None:
    raise SinkError("not today")


def pipeline(*sinks: Sink) -> tg.Pipeline:
    p = tg.Pipeline("opening")
    counted = p.source(sensors(500)).key_by("id").aggregate(n=tg.agg.count())
    for sink in sinks:
        counted.sink(sink)
    return p


def nodes_of(checkpoint: Path) -> list[str]:
    """The processes that are state nodes on this checkpoint."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text()
        except OSError:
            continue  # It has ended meanwhile.
        if "tidegate.state.node.process" in words and str(checkpoint) in words:
            found.append(process.name)
    return found


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (Watched(on_open=failing), SinkError),
        (Watched(on_check=failing), PipelineError),
        (Watched(on_recover=failing), SinkError),
    ],
    ids=["open", "check", "recover"],
)
def test_a_sink_that_fails_leaves_no_other_open(run: Run, second: Watched, error: type[Exception]) -> None:
    first = Watched()
    with pytest.raises(error, match="not today"):
        run(pipeline(first, second))
    assert first.log == ["opened", "closed"]
    assert second.log in ([], ["opened", "closed"])


def test_a_checkpoint_that_does_not_fit_leaves_no_sink_open(run: Run, tmp_path: Path) -> None:
    run(pipeline(Watched()))
    sink = Watched()
    with pytest.raises(CheckpointError, match="has its runs in"):
        run(pipeline(sink), state__log=str(tmp_path / "elsewhere"))
    assert sink.log == ["opened", "closed"]


def test_another_driver_is_shut_out_only_by_one_that_has_the_lock(run: Run, tmp_path: Path) -> None:
    """What is started again in the place of the first one, which ends, finds the lock taken."""
    checkpoint, found = tmp_path / "checkpoint", []
    checkpoint.mkdir()
    first, third = DriverLock(Checkpoint.at(checkpoint)), DriverLock(Checkpoint.at(checkpoint))

    def first_ends() -> None:
        first.release()
        found.append(third.acquire())

    assert first.acquire()
    run(pipeline(Watched(on_recover=first_ends)), take_over=True)
    assert found == [False]


def test_nodes_that_do_not_start_leave_no_sink_open(run: Run, tmp_path: Path) -> None:
    sink = Watched()
    with pytest.raises(tg.TidegateError, match="did not start"):
        run(pipeline(sink), state__bind="203.0.113.1")
    assert sink.log == ["opened", "closed"]
    assert nodes_of(tmp_path) == []


def test_a_control_server_that_does_not_start_leaves_no_node_and_no_sink(run: Run, tmp_path: Path) -> None:
    sink = Watched()
    with pytest.raises(ControlError, match="cannot listen"):
        run(pipeline(sink), control__bind="203.0.113.1")
    assert sink.log == ["opened", "closed"]
    assert nodes_of(tmp_path) == []


@dataclass
class Grow:
    """Asks for two nodes after the first batch, and notes how many there were at the second and later."""

    nodes: list[int] = field(default_factory=list)
    controls: Controls | None = None
    why: Any = None

    def attach(self, controls: Controls) -> None:
        if self.why is not None:
            raise self.why
        assert controls.status().phase == "starting"
        self.controls = controls

    def __call__(self, progress: tg.BatchProgress) -> None:
        assert self.controls is not None
        if not self.nodes:
            self.controls.apply(Ask(nodes=2, strategy="lazy"))
        self.nodes.append(progress.state_nodes)
        if self.nodes[-1] == 2:
            self.controls.stop()


def test_a_listener_that_cannot_attach_leaves_no_node_and_no_sink(run: Run, tmp_path: Path) -> None:
    sink = Watched()
    with pytest.raises(ValueError, match="no thanks"):
        run(pipeline(sink), listeners=[Grow(why=ValueError("no thanks"))])
    assert sink.log == ["opened", "closed"]
    assert nodes_of(tmp_path) == []


def test_a_run_that_a_signal_has_stopped_is_not_rescaled_in_its_last_batch(run: Run) -> None:
    steering = Grow(nodes=[1])
    refused: list[str] = []

    def ask() -> None:
        if refused:
            return
        assert steering.controls is not None
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 30
        while steering.controls.status().phase != "stopping" and time.monotonic() < until:
            time.sleep(0.01)
        with pytest.raises(ControlError, match="is stopping and can no longer be rescaled") as error:
            steering.controls.apply(Ask(nodes=2))
        refused.append(str(error.value))

    run(pipeline(Watched(on_write=ask)), listeners=[steering])
    assert len(refused) == 1


def test_a_query_does_not_outlive_a_run_that_breaks_off(
    run: Run, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(self: Runner, query: StreamingQuery, duration: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "_wait", break_off)
    sink = Watched()
    with pytest.raises(KeyboardInterrupt):
        run(pipeline(sink))
    assert spark.streams.active == []
    assert sink.log == ["opened", "closed"]
    assert nodes_of(tmp_path) == []


def test_a_listener_rescales_without_a_control_server(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("steered")
    p.source(sensors(1_000_000)).key_by("id").aggregate(n=tg.agg.count()).sink(Watched())
    grow = Grow()
    limits = {"admission__max_rows": 500, "admission__initial_rows": 500}
    run(p, listeners=[grow], control__enabled=False, state__nodes=1, **limits)
    assert (grow.nodes[0], grow.nodes[-1]) == (1, 2)
    assert not (tmp_path / "checkpoint" / "control.json").exists()
