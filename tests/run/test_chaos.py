"""kill -9 of random parts of a run, again and again: output and state are those of an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.run.chaos_kit import Driver, Left, await_that, checkpoint_of, finish, last_batch, left, parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = 3.0
"""Seconds from kill to kill, about."""
INTERVAL = 1.0
"""Seconds from batch to batch while parts are killed, so that it is known how many there can be at most."""
KINDS = ("driver", "jvm", "node", "worker")

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Left]:
    """What a run of so many batches leaves that nobody disturbs."""

    @cache
    def run(batches: int) -> Left:
        return finish(tmp_path_factory.mktemp("calm"), batches).left

    return run


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


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_kills_of_random_parts_leave_no_trace(
    calm: Callable[[int], Left],
    tmp_path: Path,
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    """A part that dies is replaced without help; only a dead driver is started again from outside."""
    seconds = 120.0
    undisturbed = calm(int(seconds / INTERVAL + seconds / EVERY) + 10)
    folder = tmp_path / "struck"
    folder.mkdir()
    killed: list[str] = []
    with ExitStack() as stack:

        def start(interval: float) -> Driver:
            settings = {"engine.interval": f"{interval * 1000:.0f} ms"}
            return stack.enter_context(Driver(folder, undisturbed.batches, settings=settings))

        running, since = start(INTERVAL), 0
        until = time.monotonic() + seconds + settled(running, folder)
        while time.monotonic() < until:
            time.sleep(EVERY * chance.uniform(0.7, 1.3))
            if not running.alive:
                assert {"driver", "jvm"} & set(killed[since:]), running.said
                running, since = start(INTERVAL), len(killed)
                # Half of the drivers are struck while they start, the others at work.
                until += settled(running, folder) if chance.random() < 0.5 else 0
            killed += strike(running, chance)
        if running.wait(5 * seconds) != 0:
            assert {"driver", "jvm"} & set(killed[since:]), running.said
            last = start(0.02)
            assert last.wait(5 * seconds) == 0, last.said
    record_property("killed", json.dumps(Counter(killed)))
    assert len(killed) >= seconds / EVERY / 3
    assert left(folder, checkpoint_of(folder)) == undisturbed


def test_every_part_is_replaced_while_its_driver_lives(calm: Callable[[int], Left], tmp_path: Path) -> None:
    """Nodes, and each kind of process that Spark runs Python in. A driver without its JVM ends by itself."""
    undisturbed = calm(22)
    folder = tmp_path / "struck"
    folder.mkdir()
    settings = {"engine.interval": "500 ms"}
    with Driver(folder, undisturbed.batches, settings=settings) as running:
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
    with Driver(folder, undisturbed.batches) as last:
        assert last.wait() == 0, last.said
    assert left(folder, checkpoint_of(folder)) == undisturbed
