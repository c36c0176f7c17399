"""Whatever goes wrong at any point of a batch: output and state are those of a run that nobody disturbed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.chaos_kit import Driver, await_that, checkpoint_of, driver, finish, last_batch, left
from tidegate.testing import faults
from tidegate.testing.faults import Fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

COMMITTED = ("driver.appended", "driver.committed", "driver.published")
"""Points after the commit point: the batch counts, whatever becomes of its driver."""


def numbered(plan: Iterable[Fault], first: int) -> list[Fault]:
    """Each fault in a batch of its own. Merges follow no batch closely: theirs come with the first ones."""
    numbers = count(first)
    return [
        fault if fault.point == "node.merge" else replace(fault, batch_id=next(numbers)) for fault in plan
    ]


def batches_for(plan: Iterable[Fault]) -> int:
    """As many as it takes to strike and to recover."""
    return max(fault.batch_id or 0 for fault in plan) + 4


def survivable() -> Iterator[Fault]:
    """All faults that leave the driver alive."""
    for point in faults.POINTS:
        part = point.partition(".")[0]
        yield Fault(point, "crash", victim=None if part == "node" else "node")
        yield Fault(point, "crash", victim=None if part == "task" else "executor")
        yield Fault(point, "hang", seconds=0.2 if part == "driver" else 3600.0)
        if point not in COMMITTED:
            yield Fault(point, "error")


def test_faults_that_leave_the_driver_alive(spark: SparkSession, tmp_path: Path) -> None:
    """Nodes and workers crash, requests fail, and everything hangs: each time the batch is tried again."""
    plan = numbered(survivable(), first=4)
    batches = batches_for(plan)
    calm = finish(tmp_path / "calm", batches)
    deadline = f"{max(5.0, 2 * calm.slowest):.0f} s"
    with faults.planned(tmp_path / "faults", plan):
        settings = {"engine.deadline": deadline, "state.timeout": "2 s"}
        struck = finish(tmp_path / "struck", batches, **settings)
    assert {fault.name for fault in plan} - faults.struck(tmp_path / "faults") == set()
    assert struck.left == calm.left


def fatal() -> Iterator[Fault]:
    """All faults that end the driver."""
    for point in faults.POINTS:
        yield Fault(point, "crash", victim="driver")
        if point in COMMITTED:
            yield Fault(point, "error")


def test_faults_that_end_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """The next driver goes on: it publishes what was committed, and nothing of what was not."""
    plan = numbered(fatal(), first=1)
    calm = finish(tmp_path / "calm", batches_for(plan))
    folder, environ = tmp_path / "struck", faults.environment(tmp_path / "faults", plan)
    folder.mkdir()
    done = False
    while not done:
        before = faults.struck(tmp_path / "faults")
        with driver(folder, calm.left.batches, environ=environ) as running:
            done = running.wait() == 0
            assert done or faults.struck(tmp_path / "faults") > before, running.said
    assert {fault.name for fault in plan} - faults.struck(tmp_path / "faults") == set()
    assert left(folder, checkpoint_of(folder)) == calm.left


def test_drivers_that_come_back_after_another_took_over(spark: SparkSession, tmp_path: Path) -> None:
    """One after the other is held, at each point that a driver passes, until the next one has moved on; the
    last one is frozen with all its processes until everything is done."""
    points = [point for point in faults.POINTS if point.startswith("driver.")]
    plan = numbered([Fault(point, "hang") for point in points], first=1)
    calm = finish(tmp_path / "calm", batches_for(plan) + 8)
    folder, environ = tmp_path / "struck", faults.environment(tmp_path / "faults", plan)
    folder.mkdir()
    with ExitStack() as stack:

        def start() -> Driver:
            return stack.enter_context(driver(folder, calm.left.batches, environ=environ))

        held: Driver | None = None
        for number, fault in enumerate(plan):
            running = start()
            await_that((tmp_path / "faults" / f"{fault.name}.struck").exists, f"{fault.name} struck")
            if held is not None:
                faults.release(tmp_path / "faults", plan[number - 1])
                assert_replaced(held)
            held = running
        frozen = start()
        await_that(lambda: last_batch(folder) > len(plan) + 1, "the driver that will be frozen moved on")
        with frozen.frozen():
            assert start().wait() == 0
            done = left(folder, checkpoint_of(folder))
        assert_replaced(frozen)
        faults.release(tmp_path / "faults", plan[-1])
        assert held is not None
        assert_replaced(held)
    assert done == calm.left
    assert left(folder, checkpoint_of(folder)) == done


def assert_replaced(held: Driver) -> None:
    assert held.wait() == 1
    assert "another driver has taken over" in held.said
