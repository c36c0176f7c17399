"""Rescales of real runs: whatever changes on the way, the output is that of an undisturbed one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tests.engine.conftest import Run
from tests.engine.readings import latest, read, rows_of, sensors, windows
from tidegate.control.client import ControlClient
from tidegate.control.model import Ask, Rescale, Strategy
from tidegate.errors import ControlError
from tidegate.ledger.ledger import Ledger
from tidegate.state.route import Route

pytestmark = pytest.mark.spark

MANY = 1_000_000
"""More rows than any of these runs gets to: they end when all was done to them."""
Act = Callable[[ControlClient], object]


@dataclass
class Steering:
    """Does one thing after the other to the running pipeline, then stops it."""

    checkpoint: Path
    acts: Sequence[Act]
    refused: list[str] = field(default_factory=list)
    records: Sequence[Rescale] = ()
    rows: int = 0
    done: int = 0
    wait: int = 3
    """Batches until the next act."""

    def __call__(self, progress: tg.BatchProgress) -> None:
        client = ControlClient.find(self.checkpoint)
        self.rows += progress.rows_in
        self.records = client.history()
        # Nodes take their time to start: a rescale has to be on its new route before the next act.
        if self.records and self.records[-1].first_batch is None and not self.records[-1].over:
            return
        self.wait -= 1
        if self.wait > 0:
            return
        self.wait = 3
        if self.done == len(self.acts):
            client.stop()
            return
        self.done += 1
        try:
            self.acts[self.done - 1](client)
        except ControlError as error:
            self.refused.append(str(error))


def to(nodes: int, strategy: Strategy = "hybrid", **more: Any) -> Act:
    return lambda client: client.apply(Ask(nodes=nodes, strategy=strategy, **more))


def nothing(client: ControlClient) -> None:
    """Let some batches pass."""


def counting(path: Path) -> tg.Pipeline:
    p = tg.Pipeline("count")
    p.source(sensors(MANY)).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(path))
    return p


def assert_counted(path: Path, rows: int) -> None:
    found = latest(read(path), "id")
    assert {key: row["n"] for key, row in found.items()} == Counter(
        row["id"] for row in rows_of(sensors(MANY), rows)
    )


def settings(**more: object) -> dict[str, object]:
    return {"admission__max_rows": 500, "admission__initial_rows": 500, "engine__interval": "50 ms", **more}


@pytest.mark.parametrize("strategy", ["restart", "eager", "lazy", "hybrid"])
@pytest.mark.parametrize("transfer", ["log", "peer"])
def test_out_and_in_by_any_strategy(run: Run, tmp_path: Path, strategy: Strategy, transfer: str) -> None:
    steering = Steering(tmp_path / "checkpoint", [to(3, strategy), nothing, to(2, strategy), nothing])
    run(
        counting(tmp_path / "out"),
        listeners=[steering],
        **settings(state__nodes=1, state__transfer=transfer, engine__parallelism=2),
    )
    assert not steering.refused
    assert_counted(tmp_path / "out", steering.rows)
    assert [(r.nodes, r.strategy) for r in steering.records] == [((1, 3), strategy), ((3, 2), strategy)]
    for record in steering.records:
        assert record.first_batch is not None
        if strategy != "lazy":
            assert record.phase == "settled"


def test_a_rescale_outlives_a_restart(run: Run, tmp_path: Path) -> None:
    steering = Steering(tmp_path / "checkpoint", [to(3)])
    run(counting(tmp_path / "out"), listeners=[steering], **settings(engine__parallelism=2))
    last = Ledger(tmp_path / "checkpoint" / "ledger").last
    assert last is not None
    assert last.route is not None
    assert Route.from_json(last.route).nodes == (0, 1, 2)
    again = Steering(tmp_path / "checkpoint", [nothing], rows=steering.rows)
    run(counting(tmp_path / "out"), listeners=[again], **settings(engine__parallelism=2))
    assert_counted(tmp_path / "out", again.rows)
    after = Ledger(tmp_path / "checkpoint" / "ledger").last
    assert after is not None
    assert after.route == last.route


def test_windows_fall_due_while_their_state_is_elsewhere(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("windows")
    counts = p.source(sensors(MANY)).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    counts.sink(tg.sinks.Files(tmp_path / "out"))
    acts = [to(4, "lazy"), nothing, to(1, "lazy"), nothing, to(3, "lazy"), nothing]
    steering = Steering(tmp_path / "checkpoint", acts)
    _, told = run(p, listeners=[steering], **settings(state__transfer="peer"))
    rows = read(tmp_path / "out")
    found = {(row["id"], row["window_start"]): row["n"] for row in rows}
    assert len(found) == len(rows)
    held = told[-1].watermark
    assert held is not None
    wanted = windows(rows_of(sensors(MANY), steering.rows), 4)
    assert found == {key: n for key, n in wanted.items() if key[1] + timedelta(seconds=4) <= held}
    assert [r.nodes for r in steering.records] == [(2, 4), (4, 1), (1, 3)]


@pytest.mark.parametrize("transfer", ["log", "peer"])
def test_nodes_are_lost_in_the_middle(run: Run, tmp_path: Path, transfer: str) -> None:
    def kill(client: ControlClient) -> None:
        for node in client.status().nodes[:2]:
            os.kill(node.pid, signal.SIGKILL)

    acts = [to(4, "lazy"), kill, to(2, "lazy"), kill, nothing]
    steering = Steering(tmp_path / "checkpoint", acts)
    run(
        counting(tmp_path / "out"),
        listeners=[steering],
        **settings(state__transfer=transfer, engine__retry_wait="0 s", engine__tries=6),
    )
    assert_counted(tmp_path / "out", steering.rows)
    assert [r.nodes for r in steering.records] == [(2, 4), (4, 2)]


def test_nonsense_is_refused_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    acts = [
        to(0),
        to(2),
        to(1000),
        to(3, step="nobody"),
        lambda client: client.apply(Ask(parallelism=0)),
        lambda client: (to(3, "lazy")(client), to(4)(client)),
    ]
    steering = Steering(tmp_path / "checkpoint", acts)
    run(counting(tmp_path / "out"), listeners=[steering], **settings(engine__parallelism=2))
    assert_counted(tmp_path / "out", steering.rows)
    assert len(steering.refused) == 6
    assert [r.nodes for r in steering.records] == [(2, 3)]


def test_a_skewed_pipeline_is_rebalanced(run: Run, tmp_path: Path) -> None:
    """All that happens is on one of two nodes; afterwards it is not."""
    shares: list[float] = []

    def rebalance(client: ControlClient) -> None:
        shares.append(max(node.load for node in client.status().nodes))
        client.apply(Ask(kind="rebalance"))

    def look(client: ControlClient) -> None:
        shares.append(max(node.load for node in client.status().nodes))

    p = tg.Pipeline("skewed")
    # Ids of which most lie in the key groups of one node.
    some = p.source(sensors(MANY)).filter("pmod(shiftrightunsigned(xxhash64(id), 63), 2) = 0 or id < 5")
    some.key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(tmp_path / "out"))
    steering = Steering(tmp_path / "checkpoint", [nothing, rebalance, nothing, look])
    run(p, listeners=[steering], **settings(engine__parallelism=2))
    assert not steering.refused
    assert shares[1] < shares[0]


def test_parallelism_alone_can_change(run: Run, tmp_path: Path) -> None:
    seen: list[int] = []
    steering = Steering(tmp_path / "checkpoint", [lambda client: client.apply(Ask(parallelism=6))])
    run(
        counting(tmp_path / "out"),
        listeners=[steering, lambda progress: seen.append(progress.parallelism)],
        **settings(engine__parallelism=2),
    )
    assert_counted(tmp_path / "out", steering.rows)
    assert (seen[0], seen[-1]) == (2, 6)
    assert steering.records[0].groups_moved == 0
