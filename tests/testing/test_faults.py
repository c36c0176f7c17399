"""Fault points: each fault strikes once, where and when it was planned, and takes who it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate import faults as hooks
from tidegate.testing import faults
from tidegate.testing.faults import Fault, InjectedError

PROGRAM = """
import sys, time
from tidegate import faults as hooks

hooks.enter(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
hooks.reach(sys.argv[2], 3)
print("past", flush=True)
sys.stdin.readline()
"""


@contextmanager
def process(folder: Path, plan: list[Fault], part: str, point: str) -> Iterator[subprocess.Popen[str]]:
    """A process that reaches a point in batch 3 when it gets a line, and ends with the next one."""
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, part, point],
        env={**os.environ, **faults.environment(folder, plan)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            assert told(started) == "ready"
            yield started
        finally:
            started.kill()


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_an_error_strikes_once_in_its_batch(tmp_path: Path) -> None:
    plan = [Fault("driver.begin", "error", batch_id=3)]
    with faults.planned(tmp_path, plan):
        hooks.reach("driver.begin", 2)
        hooks.reach("driver.begun", 3)
        assert faults.struck(tmp_path) == set()
        with pytest.raises(InjectedError, match=r"driver\.begin in batch 3"):
            hooks.reach("driver.begin", 3)
        hooks.reach("driver.begin", 3)
    assert faults.struck(tmp_path) == {plan[0].name}


def test_without_a_batch_the_first_one_is_struck(tmp_path: Path) -> None:
    with faults.planned(tmp_path, [Fault("driver.begin", "error")]), pytest.raises(InjectedError):
        hooks.reach("driver.begin", 17)


def test_nothing_strikes_after_the_plan(tmp_path: Path) -> None:
    with faults.planned(tmp_path, [Fault("driver.begin", "error")]):
        pass
    hooks.reach("driver.begin", 1)
    assert hooks.place() is None
    assert faults.struck(tmp_path) == set()


def test_several_faults_at_one_point_strike_one_after_the_other(tmp_path: Path) -> None:
    plan = [Fault("driver.begin", "error", batch_id=batch_id) for batch_id in (1, None)]
    with faults.planned(tmp_path, plan):
        for expected in (1, 2):
            with pytest.raises(InjectedError):
                hooks.reach("driver.begin", 1)
            assert len(faults.struck(tmp_path)) == expected
        hooks.reach("driver.begin", 1)


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'driver\.nowhere'.*driver\.begin"):
        Fault("driver.nowhere", "crash")


def test_a_hang_ends_when_its_time_is_over_or_it_is_released(tmp_path: Path) -> None:
    short = Fault("driver.begin", "hang", seconds=0.05)
    long = Fault("driver.begun", "hang", seconds=600)
    with faults.planned(tmp_path, [short, long]):
        began = time.monotonic()
        hooks.reach("driver.begin", 1)
        assert time.monotonic() - began >= 0.05
        held = threading.Thread(target=hooks.reach, args=("driver.begun", 1))
        held.start()
        while not faults.struck(tmp_path) >= {long.name}:
            time.sleep(0.01)
        assert held.is_alive()
        faults.release(tmp_path, long)
        held.join(60)
        assert not held.is_alive()


def test_a_plan_is_taken_over_and_given_up(tmp_path: Path) -> None:
    """As a task does, whose process was started for another run."""
    place = faults.environment(tmp_path, [Fault("task.begin", "error")])
    hooks.adopt(next(iter(place.values())))
    with pytest.raises(InjectedError):
        hooks.reach("task.begin", 0)
    hooks.adopt(None)
    assert hooks.place() is None


def test_a_crash_takes_the_process_that_reaches_the_point(tmp_path: Path) -> None:
    plan = [Fault("node.get", "crash", batch_id=3)]
    with (
        process(tmp_path, plan, "node", "node.get") as one,
        process(tmp_path, plan, "node", "node.get") as other,
    ):
        tell(one)
        assert one.wait(60) == -signal.SIGKILL
        tell(other)
        assert told(other) == "past"
    assert faults.struck(tmp_path) == {plan[0].name}


def test_a_crash_takes_all_of_its_victims_and_nobody_else(tmp_path: Path) -> None:
    plan = [Fault("driver.begun", "crash", victim="node")]
    with (
        process(tmp_path, plan, "node", "node.get") as one,
        process(tmp_path, plan, "node", "node.get") as other,
        process(tmp_path, plan, "executor", "task.begin") as worker,
        process(tmp_path, plan, "driver", "driver.begun") as driver,
    ):
        tell(driver)
        assert told(driver) == "past"
        assert one.wait(60) == other.wait(60) == -signal.SIGKILL
        assert worker.poll() is None


def test_a_process_that_is_one_of_the_victims_takes_the_others_with_it(tmp_path: Path) -> None:
    plan = [Fault("node.get", "crash", victim="node")]
    with (
        process(tmp_path, plan, "node", "node.get") as one,
        process(tmp_path, plan, "node", "node.get") as two,
        process(tmp_path, plan, "node", "node.get") as three,
    ):
        tell(two)
        assert {one.wait(60), two.wait(60), three.wait(60)} == {-signal.SIGKILL}


def test_a_process_that_got_the_number_of_a_victim_is_left_alone(tmp_path: Path) -> None:
    plan = [Fault("driver.begun", "crash", victim="node")]
    with process(tmp_path, plan, "node", "node.get") as stranger:
        (tmp_path / f"node-{stranger.pid}.pid").write_text("1")
        with faults.planned(tmp_path, plan):
            hooks.reach("driver.begun", 0)
        tell(stranger)
        assert told(stranger) == "past"
