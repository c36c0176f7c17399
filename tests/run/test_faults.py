"""Whatever goes wrong at any point of a batch: output and state are those of a run that nobody disturbed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.run.chaos_kit import Driver, Finished, await_that, checkpoint_of, finish, last_batch, left
from tidegate.testing import faults
from tidegate.testing.faults import Fault, InjectedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

BATCHES = 24
"""Of all runs: as many as it takes for every fault to strike, and to recover from the last one."""
COMMITTED = ("driver.appended", "driver.committed", "driver.published")
"""Points after the commit point: the batch counts, whatever becomes of its driver."""


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run that nobody disturbs."""
    return finish(tmp_path_factory.mktemp("calm"), BATCHES)


def numbered(plan: Sequence[Fault], first: int, over: int) -> list[Fault]:
    """Faults dealt out to `over` batches. Merges follow no batch closely: theirs come with the first ones."""
    dealt = [
        fault if fault.point == "node.compaction" else replace(fault, batch_id=first + number % over)
        for number, fault in enumerate(plan)
    ]
    places = [(fault.point, fault.batch_id) for fault in dealt if fault.batch_id is not None]
    assert len(places) == len(set(places)), "one fault would hide another"
    assert first + over + 4 <= BATCHES, "the last batches have to be undisturbed"
    return dealt


def survivable() -> Iterator[Fault]:
    """All faults that leave the process of the driver alive, kind by kind."""
    part = {point: point.partition(".")[0] for point in faults.POINTS}
    yield from (Fault(p, "crash", victim=None if part[p] == "node" else "node") for p in faults.POINTS)
    yield from (Fault(p, "crash", victim=None if part[p] == "task" else "executor") for p in faults.POINTS)
    yield from (Fault(p, "hang", seconds=0.2) for p in faults.POINTS if part[p] == "driver")
    yield from (Fault(p, "hang") for p in faults.POINTS if part[p] == "node")
    yield from (Fault(p, "error") for p in faults.POINTS)


def test_faults_that_leave_the_process_of_the_driver_alive(calm: Finished, tmp_path: Path) -> None:
    """Nodes and workers crash, requests fail, and everything hangs: each time the batch is tried again. Only
    an error after the commit point ends the run, and the next one goes on."""
    # A task that hangs is ended by the deadline, and each try has a longer one: those are not to be second.
    hangs = [Fault(point, "hang") for point in faults.POINTS if point.startswith("task.")]
    alone = numbered(hangs, first=1, over=len(hangs))
    # A batch gets faults of different kinds at different points: it meets them one after the other.
    plan = [*alone, *numbered(list(survivable()), first=1 + len(hangs), over=16)]
    settings = {"engine.deadline": f"{max(3.0, 2 * calm.slowest):.0f} s", "state.timeout": "2 s"}
    ended, struck = list[str](), None
    with faults.planned(tmp_path / "faults", plan):
        while struck is None:
            try:
                struck = finish(tmp_path / "struck", BATCHES, **settings)
            except InjectedError as error:
                ended.append(str(error))
    assert {fault.name for fault in plan} - faults.struck(tmp_path / "faults") == set()
    assert sorted(error.split()[2] for error in ended) == sorted(COMMITTED)
    assert struck.left == calm.left


class Drivers:
    """Drivers of one pipeline, about `count`. While one is at work the next one starts Spark, which takes
    longer than what it does then."""

    def __init__(self, folder: Path, plan: Sequence[Fault], count: int) -> None:
        folder.mkdir()
        self._folder, self._environ = folder, faults.environment(folder.parent / "faults", plan)
        self._stack, self._count = ExitStack(), count
        self._standby: Driver | None = None

    def __enter__(self) -> Drivers:
        self._standby = self._started()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> Driver:
        """Let the next one work."""
        running = self._standby or self._started()
        running.go()
        self._standby = self._started() if self._count > 0 else None
        return running

    def _started(self) -> Driver:
        self._count -= 1
        standby = Driver(self._folder, BATCHES, environ=self._environ, standby=True)
        return self._stack.enter_context(standby)


def test_faults_that_end_the_driver(calm: Finished, tmp_path: Path) -> None:
    """The next driver goes on: it publishes what was committed, and nothing of what was not."""
    crashes = [Fault(point, "crash", victim="driver") for point in faults.POINTS]
    plan = numbered(crashes, first=1, over=len(crashes))
    folder, done = tmp_path / "struck", False
    with Drivers(folder, plan, count=len(plan) + 1) as drivers:
        while not done:
            before = faults.struck(tmp_path / "faults")
            running = drivers.start()
            done = running.wait() == 0
            assert done or faults.struck(tmp_path / "faults") > before, running.said
    assert {fault.name for fault in plan} - faults.struck(tmp_path / "faults") == set()
    assert left(folder, checkpoint_of(folder)) == calm.left


def test_drivers_that_come_back_after_another_took_over(calm: Finished, tmp_path: Path) -> None:
    """One after the other is held, at each point that a driver passes, until the next one has moved on; the
    last one is frozen with all its processes until everything is done."""
    hangs = [Fault(point, "hang") for point in faults.POINTS if point.startswith("driver.")]
    plan = numbered(hangs, first=1, over=len(hangs))
    folder = tmp_path / "struck"
    with Drivers(folder, plan, count=len(plan) + 2) as drivers:
        held: Driver | None = None
        for number, fault in enumerate(plan):
            running = drivers.start()
            await_that((tmp_path / "faults" / f"{fault.name}.struck").exists, f"{fault.name} struck")
            if held is not None:
                faults.release(tmp_path / "faults", plan[number - 1])
                assert_replaced(held)
            held = running
        frozen = drivers.start()
        await_that(lambda: last_batch(folder) > len(plan) + 1, "the driver that will be frozen moved on")
        with frozen.frozen():
            assert drivers.start().wait() == 0
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
