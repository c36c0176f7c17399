"""Whatever goes wrong at any point of a batch: output and state are those of a run that nobody disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.run.chaos_kit import Driver, Finished, await_that, checkpoint_of, finish, last_batch, left
from tidegate.testing import faults
from tidegate.testing.faults import POINTS, Fault, InjectedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

COMMITTED = ("driver.appended", "driver.committed", "driver.published")
"""Points after the commit point: the batch counts, whatever becomes of its driver."""
BATCHES = {False: 16, True: 24}
"""Of a run with a sample and with all faults: enough for each to strike, and to recover from the last one."""
Calm = Callable[[int], Finished]
Record = Callable[[str, object], None]

sampled = pytest.mark.parametrize(
    "every", [pytest.param(False, id="sample"), pytest.param(True, marks=pytest.mark.soak, id="every")]
)
"""A sample of the faults, another one each day; `make soak` has them all."""


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """A run of so many batches that nobody disturbs."""
    return cache(lambda batches: finish(tmp_path_factory.mktemp("calm"), batches))


def numbered(plan: Sequence[Fault], first: int, over: int) -> list[Fault]:
    """Faults dealt out to `over` batches. Merges follow no batch closely: theirs come with the first ones."""
    dealt = [
        fault if fault.point == "node.compaction" else replace(fault, batch_id=first + number % over)
        for number, fault in enumerate(plan)
    ]
    places = [(fault.point, fault.batch_id) for fault in dealt if fault.batch_id is not None]
    assert len(places) == len(set(places)), "one fault would hide another"
    assert first + over + 4 <= max(BATCHES.values()), "the last batches have to be undisturbed"
    return dealt


def part(point: str) -> str:
    return point.partition(".")[0]


def survivable() -> dict[str, list[Fault]]:
    """All faults that leave the process of the driver alive, by what they do."""
    points = {kind: [point for point in POINTS if part(point) == kind] for kind in ("driver", "node", "task")}
    return {
        "a node crashes": [Fault(p, "crash", victim=None if part(p) == "node" else "node") for p in POINTS],
        "workers crash": [
            Fault(p, "crash", victim=None if part(p) == "task" else "executor") for p in POINTS
        ],
        "the driver hangs": [Fault(point, "hang", seconds=0.2) for point in points["driver"]],
        "a node hangs": [Fault(point, "hang") for point in points["node"]],
        "a task hangs": [Fault(point, "hang") for point in points["task"]],
        "an error": [Fault(point, "error") for point in POINTS],
    }


def sample(kinds: Mapping[str, Sequence[Fault]], chance: random.Random) -> list[Fault]:
    """One fault at each point, and each kind at least once."""
    chosen: dict[str, Fault] = {}
    # Kinds with few points first, so that none finds all of its points taken.
    for faults_of in sorted(kinds.values(), key=len):
        fault = chance.choice([fault for fault in faults_of if fault.point not in chosen])
        chosen[fault.point] = fault
    for point in POINTS:
        there = [fault for faults_of in kinds.values() for fault in faults_of if fault.point == point]
        chosen.setdefault(point, chance.choice(there))
    return [chosen[point] for point in POINTS]


def test_every_sample_has_each_point_and_each_kind_of_fault() -> None:
    kinds = survivable()
    for seed in range(200):
        chosen = sample(kinds, random.Random(seed))
        assert [fault.point for fault in chosen] == list(POINTS)
        assert all(set(chosen) & set(faults_of) for faults_of in kinds.values())


@sampled
def test_faults_that_leave_the_process_of_the_driver_alive(
    calm: Calm, tmp_path: Path, chance: random.Random, every: bool, record_property: Record
) -> None:
    """Nodes and workers crash, requests fail, and everything hangs: each time the batch is tried again. Only
    an error after the commit point ends the run, and the next one goes on."""
    kinds = survivable()
    chosen = list(chain.from_iterable(kinds.values())) if every else sample(kinds, chance)
    # A task that hangs is ended by the deadline, and each try has a longer one: those are not to be second.
    hangs = [fault for fault in chosen if fault in kinds["a task hangs"]]
    others = [fault for fault in chosen if fault not in hangs]
    # A batch gets faults of different kinds at different points: it meets them one after the other.
    over = 16 if every else 6
    plan = [*numbered(hangs, 1, len(hangs)), *numbered(others, 1 + len(hangs), over)]
    undisturbed = calm(BATCHES[every])
    settings = {"engine.deadline": f"{max(3.0, 2 * undisturbed.slowest):.0f} s", "state.timeout": "2 s"}
    ended, struck = list[str](), None
    with faults.planned(tmp_path / "faults", plan):
        while struck is None:
            try:
                struck = finish(tmp_path / "struck", undisturbed.left.batches, **settings)
            except InjectedError as error:
                ended.append(str(error))
    assert {fault.name for fault in plan} - faults.struck(tmp_path / "faults") == set()
    record_property("faults", len(plan))
    ends = [fault.point for fault in plan if fault.action == "error" and fault.point in COMMITTED]
    assert sorted(error.split()[2] for error in ended) == sorted(ends)
    assert struck.left == undisturbed.left


class Drivers:
    """Drivers of one pipeline, about `count`. While one is at work the next one starts Spark, which takes
    longer than what it does then."""

    def __init__(
        self, folder: Path, batches: int, plan: Sequence[Fault], count: int, *, take_over: bool = False
    ) -> None:
        folder.mkdir()
        self._batches, self._take_over = batches, take_over
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
        standby = Driver(
            self._folder, self._batches, environ=self._environ, standby=True, take_over=self._take_over
        )
        return self._stack.enter_context(standby)


@pytest.mark.soak
def test_faults_that_end_the_driver(calm: Calm, tmp_path: Path, record_property: Record) -> None:
    """The next driver goes on: it publishes what was committed, and nothing of what was not."""
    plan = numbered([Fault(point, "crash", victim="driver") for point in POINTS], 1, len(POINTS))
    undisturbed = calm(BATCHES[True]).left
    folder, done = tmp_path / "struck", False
    with Drivers(folder, undisturbed.batches, plan, count=len(plan) + 1) as drivers:
        while not done:
            before = faults.struck(tmp_path / "faults")
            running = drivers.start()
            done = running.wait() == 0
            assert done or faults.struck(tmp_path / "faults") > before, running.said
    assert {fault.name for fault in plan} - faults.struck(tmp_path / "faults") == set()
    record_property("faults", len(plan))
    assert left(folder, checkpoint_of(folder)) == undisturbed


@sampled
def test_drivers_that_come_back_after_another_took_over(
    calm: Calm, tmp_path: Path, chance: random.Random, every: bool, record_property: Record
) -> None:
    """One after the other is held, at each point that a driver passes, until the next one has moved on; the
    last one is frozen with all its processes until everything is done."""
    points = [point for point in POINTS if part(point) == "driver"]
    if not every:
        points = [chance.choice(points)]
    plan = numbered([Fault(point, "hang") for point in points], 1, len(points))
    undisturbed = calm(BATCHES[every]).left
    folder = tmp_path / "struck"
    with Drivers(folder, undisturbed.batches, plan, count=len(plan) + 2, take_over=True) as drivers:
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
    record_property("faults", len(plan))
    assert done == undisturbed
    assert left(folder, checkpoint_of(folder)) == done


def assert_replaced(held: Driver) -> None:
    assert held.wait() == 1
    assert "another driver has taken over" in held.said
