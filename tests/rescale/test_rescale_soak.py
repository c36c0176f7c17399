"""Many rescales of one run: nothing is lost on the way, and nothing piles up."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

import tidegate as tg
from tests.conftest import Run
from tests.run.steering import Act, Steering, assert_counted, counting, settings
from tidegate.control.client import ControlClient
from tidegate.errors import ControlError
from tidegate.rescale.model import STRATEGIES, Ask

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]

T = TypeVar("T")


@pytest.mark.parametrize("transfer", ["log", "peer"])
def test_twenty_random_rescales_with_kills(run: Run, tmp_path: Path, transfer: str) -> None:
    chance = random.Random(transfer)

    def scale(client: ControlClient) -> None:
        client.apply(Ask(nodes=chance.randint(1, 4), strategy=chance.choice(STRATEGIES[1:])))

    def kill(client: ControlClient) -> None:
        nodes = client.status().nodes
        for node in chance.sample(nodes, chance.randint(1, len(nodes))):
            os.kill(node.pid, signal.SIGKILL)

    acts: list[Act] = [
        act for _ in range(20) for act in ((scale, kill) if chance.random() < 0.5 else (scale,))
    ]
    steering = Steering(tmp_path / "checkpoint", acts, apart=2)
    run(
        counting(tmp_path / "out"),
        listeners=[steering],
        **settings(state__transfer=transfer, engine__retry_wait="0 s", engine__tries=8),
    )
    assert_counted(tmp_path / "out", steering.rows)
    # Some are refused: as many nodes as there are, or while an eager one holds its batch.
    assert len(steering.records) + len(steering.refused) == 20
    assert len(steering.records) >= 8


@dataclass(frozen=True)
class Use:
    """What a run has of the machine."""

    files: int
    threads: int
    processes: int
    memory: int
    disk: int


def use(checkpoint: Path) -> Use:
    me = Path("/proc/self")
    tasks = [known(task.read_text) or "" for task in me.glob("task/*/children")]
    children = " ".join(tasks).split()
    # Of Spark's own records the last hundred stay, which takes longer than this run.
    kept = [
        Path(place, name)
        for folder in ("ledger", "nodes", "state")
        for place, _, names in os.walk(checkpoint / folder)
        for name in names
    ]
    return Use(
        files=len(list((me / "fd").iterdir())),
        threads=threading.active_count(),
        processes=len(children),
        memory=pages(me) + sum(pages(Path("/proc") / child) for child in children if is_node(child)),
        disk=sum(found.st_size for file in kept if (found := known(file.stat))),
    )


def pages(process: Path) -> int:
    """Resident ones."""
    return int((known((process / "statm").read_text) or "0 0").split()[1])


def is_node(pid: str) -> bool:
    return b"tidegate.state.node.process" in (known(Path(f"/proc/{pid}/cmdline").read_bytes) or b"")


def known(ask: Callable[[], T]) -> T | None:
    """The answer, if what is asked about is still there."""
    try:
        return ask()
    except (FileNotFoundError, ProcessLookupError):
        return None


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


@pytest.mark.parametrize("transfer", ["log", "peer"])
def test_a_hundred_rescales_leave_nothing_behind(run: Run, tmp_path: Path, transfer: str) -> None:
    soak = Soak(tmp_path / "checkpoint", 100)
    run(counting(tmp_path / "out"), listeners=[soak], **settings(state__transfer=transfer))
    assert_counted(tmp_path / "out", soak.rows)
    early, late = soak.uses[5:15], soak.uses[-10:]
    assert min(u.files for u in late) <= max(u.files for u in early) + 5
    assert min(u.threads for u in late) <= max(u.threads for u in early) + 3
    assert min(u.processes for u in late) <= max(u.processes for u in early)
    assert min(u.memory for u in late) <= 1.2 * max(u.memory for u in early)
    assert min(u.disk for u in late) <= 1.5 * max(u.disk for u in early)
