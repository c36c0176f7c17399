"""kill -9 of random parts of a run, again and again: output and state are those of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.run.chaos_kit import Driver, Left, await_that, checkpoint_of, finish, last_batch, left, parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = float(os.environ.get("TIDEGATE_CHAOS_SECONDS", "30"))
"""How long parts are killed. 120 is the whole test."""
EVERY = 3.0
INTERVAL = 1.0
"""Seconds from batch to batch while parts are killed, so that it is known how many there can be at most."""
BATCHES = int(SECONDS / INTERVAL + SECONDS / EVERY) + 10
KINDS = ("driver", "jvm", "node", "worker")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 10 * SECONDS),
]


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What a run leaves that nobody disturbs."""
    return finish(tmp_path_factory.mktemp("calm"), BATCHES).left


def victims(running: Driver, kind: str) -> list[int]:
    """The processes of that kind; a dead driver has none."""
    if not running.alive:
        return []
    if kind == "driver":
        return [running.process.pid]
    return [part.pid for part in parts(running.process.pid) if part.kind == kind]


def strike(running: Driver, moments: random.Random) -> list[str]:
    """Kill one process of a random kind; which kind it was, if there was one."""
    there = {kind: found for kind in KINDS if (found := victims(running, kind))}
    if not there:
        return []
    kind = moments.choice(sorted(there))
    with suppress(ProcessLookupError):
        os.kill(moments.choice(sorted(there[kind])), signal.SIGKILL)
    return [kind]


def settled(running: Driver, folder: Path) -> float:
    """Wait until a driver commits batches; how many seconds that took."""
    began, before = time.monotonic(), last_batch(folder)
    await_that(lambda: last_batch(folder) > before or not running.alive, "a batch was committed")
    return time.monotonic() - began


def test_kills_of_random_parts_leave_no_trace(calm: Left, tmp_path: Path) -> None:
    """A part that dies is replaced without help; only a dead driver is started again from outside."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    moments = random.Random(seed)
    folder = tmp_path / "struck"
    folder.mkdir()
    killed: list[str] = []
    with ExitStack() as stack:

        def start(interval: float) -> Driver:
            settings = {"engine.interval": f"{interval * 1000:.0f} ms"}
            return stack.enter_context(Driver(folder, calm.batches, settings=settings))

        running, since = start(INTERVAL), 0
        until = time.monotonic() + SECONDS + settled(running, folder)
        while time.monotonic() < until:
            time.sleep(EVERY * moments.uniform(0.7, 1.3))
            if not running.alive:
                assert {"driver", "jvm"} & set(killed[since:]), running.said
                running, since = start(INTERVAL), len(killed)
                # Half of the drivers are struck while they start, the others at work.
                until += settled(running, folder) if moments.random() < 0.5 else 0
            killed += strike(running, moments)
        if running.wait(5 * SECONDS) != 0:
            assert {"driver", "jvm"} & set(killed[since:]), running.said
            last = start(0.02)
            assert last.wait(5 * SECONDS) == 0, last.said
    print(f"killed: {' '.join(killed)}")  # noqa: T201
    assert len(killed) >= SECONDS / EVERY / 3
    assert left(folder, checkpoint_of(folder)) == calm


def test_every_part_is_replaced_while_its_driver_lives(calm: Left, tmp_path: Path) -> None:
    """Nodes, and each kind of process that Spark runs Python in. A driver without its JVM ends by itself."""
    folder = tmp_path / "struck"
    folder.mkdir()
    settings = {"engine.interval": "500 ms"}
    with Driver(folder, calm.batches, settings=settings) as running:
        settled(running, folder)
        struck: set[str] = set()
        while True:
            there = {
                part.role: part for part in parts(running.process.pid) if part.kind != "jvm" and part.role
            }
            fresh = sorted(there.keys() - struck)
            if not fresh:
                break
            struck.add(fresh[0])
            os.kill(there[fresh[0]].pid, signal.SIGKILL)
            settled(running, folder)
            settled(running, folder)
            assert running.alive, f"{fresh[0]} was killed: {running.said}"
        assert {"tidegate.state.node.process", "pyspark.daemon pyspark.worker"} <= struck
        (jvm,) = (part for part in parts(running.process.pid) if part.kind == "jvm")
        os.kill(jvm.pid, signal.SIGKILL)
        assert running.wait() == 1
    with Driver(folder, calm.batches) as last:
        assert last.wait() == 0, last.said
    assert left(folder, checkpoint_of(folder)) == calm
