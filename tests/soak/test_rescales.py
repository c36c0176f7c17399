"""Many rescales of one run: nothing is lost on the way, and nothing piles up."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import tidegate as tg
from tests.conftest import Run
from tests.run.steering import Act, Steering, assert_counted, counting, settings
from tests.soak.usage import Use, assert_bounded, use
from tidegate.control.client import ControlClient
from tidegate.errors import ControlError
from tidegate.rescale.model import STRATEGIES, Ask

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("transfer", "rescales"),
    [
        ("peer", 6),
        pytest.param("peer", 40, marks=pytest.mark.soak),
        pytest.param("log", 40, marks=pytest.mark.soak),
    ],
)
def test_random_rescales_with_kills(
    run: Run, tmp_path: Path, chance: random.Random, transfer: str, rescales: int
) -> None:
    def scale(client: ControlClient) -> None:
        others = {1, 2, 3, 4} - {len(client.status().nodes)}
        client.apply(Ask(nodes=chance.choice(sorted(others)), strategy=chance.choice(STRATEGIES[1:])))

    def kill(client: ControlClient) -> None:
        nodes = client.status().nodes
        for node in chance.sample(nodes, chance.randint(1, len(nodes))):
            os.kill(node.pid, signal.SIGKILL)

    acts: list[Act] = [
        act for _ in range(rescales) for act in ((scale, kill) if chance.random() < 0.5 else (scale,))
    ]
    steering = Steering(tmp_path / "checkpoint", acts, apart=2)
    run(
        counting(tmp_path / "out"),
        listeners=[steering],
        **settings(state__transfer=transfer, engine__retry_wait="0 s", engine__tries=8),
    )
    assert_counted(tmp_path / "out", steering.rows)
    # Some are refused, as while an eager one holds its batch.
    assert len(steering.records) + len(steering.refused) == rescales
    assert len(steering.records) >= rescales // 3


class Soak:
    """Scales out and in as soon as it has settled; looks at what the run uses whenever it is on two nodes."""

    def __init__(self, checkpoint: Path, rescales: int) -> None:
        self.checkpoint = checkpoint
        self.left = rescales
        self.uses: list[Use] = []
        self.rows = 0

    def __call__(self, progress: tg.BatchProgress) -> None:
        self.rows += progress.rows_in
        client = ControlClient.find(self.checkpoint)
        status = client.status()
        if status.rescale is not None and not status.rescale.over:
            return
        if len(status.nodes) == 2:
            self.uses.append(use(self.checkpoint))
        if not self.left:
            client.stop()
            return
        try:
            client.apply(Ask(nodes=1 if len(status.nodes) == 2 else 2))
            self.left -= 1
        except ControlError:
            return  # The node that leaves has not ended yet.


@pytest.mark.parametrize(
    ("transfer", "rescales"),
    [
        ("log", 16),
        pytest.param("log", 100, marks=pytest.mark.soak),
        pytest.param("peer", 100, marks=pytest.mark.soak),
    ],
)
def test_rescales_leave_nothing_behind(
    run: Run, tmp_path: Path, transfer: str, rescales: int, record_property: Callable[[str, object], None]
) -> None:
    soak = Soak(tmp_path / "checkpoint", rescales)
    run(counting(tmp_path / "out"), listeners=[soak], **settings(state__transfer=transfer))
    assert_counted(tmp_path / "out", soak.rows)
    slack = Use(descriptors=10, threads=3, processes=0, memory=96 << 20, files=40, disk=4 << 20)
    record_property("rescales", rescales)
    record_property("last quarter to first", json.dumps(assert_bounded(soak.uses, slack=slack)))
