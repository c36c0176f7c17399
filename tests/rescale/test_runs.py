"""Rescales of real runs: whatever changes on the way, the output is that of an undisturbed one."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import read, rows_of, sensors, windows
from tests.run.steering import MANY, Steering, assert_counted, counting, nothing, settings, to
from tidegate.control.client import ControlClient
from tidegate.ledger.ledger import Ledger
from tidegate.rescale.model import Ask, Strategy

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("transfer", "strategy"),
    [
        *(("peer", strategy) for strategy in ("restart", "eager", "lazy", "hybrid")),
        ("log", "restart"),
        ("log", "hybrid"),
        # Nothing moves, so these are as `hybrid`.
        pytest.param("log", "eager", marks=pytest.mark.soak),
        pytest.param("log", "lazy", marks=pytest.mark.soak),
    ],
)
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


def test_status_can_be_asked_at_any_moment_of_a_restart(run: Run, tmp_path: Path) -> None:
    found: list[int] = []
    over = threading.Event()

    def ask_on_and_on(client: ControlClient) -> None:
        while not over.is_set():
            found.append(len(client.status().nodes))

    def restart(client: ControlClient) -> None:
        to(3, "restart")(client)
        asking.append(threads.submit(ask_on_and_on, client))

    asking: list[Future[None]] = []
    with ThreadPoolExecutor(1) as threads:
        steering = Steering(tmp_path / "checkpoint", [restart])

        def ends(progress: tg.BatchProgress) -> None:
            if steering.records and steering.records[-1].over:
                over.set()

        try:
            run(counting(tmp_path / "out"), listeners=[steering, ends], **settings(engine__parallelism=2))
        finally:
            over.set()
        asking[0].result()
    assert {0, 3} <= set(found)


@pytest.mark.parametrize(("transfer", "phase"), [("log", "settled"), ("peer", "moving")])
def test_a_rescale_outlives_a_restart(run: Run, tmp_path: Path, transfer: str, phase: str) -> None:
    """One that has settled, and one whose state was on its way when the pipeline was stopped."""
    usual = settings(engine__parallelism=2, state__transfer=transfer)
    steering = Steering(tmp_path / "checkpoint", [to(3, "lazy")])
    run(counting(tmp_path / "out"), listeners=[steering], **usual)
    assert steering.records[0].phase == phase
    last = Ledger(tmp_path / "checkpoint" / "ledger").last
    assert last is not None
    assert last.route is not None
    assert last.route.nodes == (0, 1, 2)
    again = Steering(tmp_path / "checkpoint", [nothing], rows=steering.rows)
    run(counting(tmp_path / "out"), listeners=[again], **usual)
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
