"""A cluster of processes on this machine, under a query that does not stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.cluster.kit import Batch, Driver, Process, alive, await_that, family, is_whole

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

MAINS = ("org.apache.spark.deploy.SparkSubmit", "CoarseGrainedExecutorBackend")
"""Classes that the Java of a driver and of an executor begin with."""


@dataclass(frozen=True, slots=True)
class Story:
    """1 -> 2 -> 1 executors, then kill -9 of the worker that is left, then the end."""

    batches: list[Batch]
    before_kill: int
    """Batches before the kill."""
    answers: tuple[int, int]
    first: str
    added: str
    stayed: set[str]
    after_shrink: list[Batch]
    replacement: str
    workers: list[int]
    """How many worker processes there were at 1, 2 and 1 executors, and in the end."""
    runs: set[str]
    query: dict[str, Any]
    processes: list[Process]
    """Of the cluster, before it was closed."""
    class_paths: list[str]
    """Of the Java of the driver and of each executor."""
    left: list[Process]
    """Those that lived when it was closed."""
    files: list[Path]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("local")
    with Driver(folder, "local") as running:
        runs, workers = {running.ask("query")["run"]}, [len(running.ask("pids")) - 1]
        (first,) = running.await_executors(1)
        running.await_more()

        grown = running.ask("fit 2")
        (added,) = running.await_executors(2) - {first}
        running.await_batch(lambda batch: batch.executors == {first, added}, "both executors have tasks")
        running.await_batch(lambda batch: added in batch.warm, "the new one is warm")
        workers.append(len(running.ask("pids")) - 1)

        shrunk = running.ask("fit 1")
        stayed = running.await_executors(1)
        gone = len(running.batches()) + 1  # The batch that runs now may have begun before.
        running.await_more()
        await_that(lambda: len(running.ask("pids")) == 2, "the worker without an executor ends")
        workers.append(len(running.ask("pids")) - 1)
        after_shrink = running.batches()[gone:]

        before_kill = len(running.batches())
        os.kill(running.ask("pids")[1], signal.SIGKILL)
        replaced = running.await_batch(lambda batch: first not in batch.executors, "another executor works")
        (replacement,) = replaced.executors
        running.await_more()
        workers.append(len(running.ask("pids")) - 1)
        query = running.ask("query")
        runs.add(query["run"])

        guards = [one for one in family(running.process.pid) if "guard.py" in one.command]
        processes = [*guards, *(one for guard in guards for one in family(guard.pid))]
        java = [
            one.command for one in family(running.process.pid) if any(main in one.command for main in MAINS)
        ]
        assert running.ask("close") == "closed"
        yield Story(
            batches=running.batches(),
            before_kill=before_kill,
            answers=(grown, shrunk),
            first=first,
            added=added,
            stayed=stayed,
            after_shrink=after_shrink,
            replacement=replacement,
            workers=workers,
            runs=runs,
            query=query,
            processes=processes,
            class_paths=[command.partition(" -cp ")[2].split()[0] for command in java],
            left=alive(processes),
            files=list(folder.glob("tidegate-cluster-*")),
        )


def test_a_query_goes_on_while_executors_come_and_go(story: Story) -> None:
    assert story.query["active"], story.query
    assert len(story.runs) == 1
    assert story.answers == (2, 1)
    assert is_whole(story.batches)


def test_a_new_executor_gets_tasks(story: Story) -> None:
    both = [batch for batch in story.batches if batch.executors == {story.first, story.added}]
    assert both
    assert all(len(batch.workers) >= 2 for batch in both)


def test_executors_work_with_the_python_that_was_warmed_up(story: Story) -> None:
    assert any(story.added in batch.warm for batch in story.batches)
    assert any(story.first in batch.warm for batch in story.batches)


def test_executors_have_the_class_path_of_the_driver(story: Story) -> None:
    """Otherwise they cannot use its archive of classes."""
    assert len(story.class_paths) >= 2
    assert len({*story.class_paths}) == 1


def test_the_youngest_executor_leaves_and_its_worker_after_it(story: Story) -> None:
    assert story.stayed == {story.first}
    assert story.after_shrink
    assert all(batch.executors == {story.first} for batch in story.after_shrink)
    assert story.workers[:3] == [1, 2, 1]


def test_no_task_is_interrupted_by_a_change_of_size(story: Story) -> None:
    assert all(batch.attempts == 1 for batch in story.batches[: story.before_kill])


def test_a_killed_worker_is_replaced(story: Story) -> None:
    assert story.replacement not in (story.first, story.added)
    assert story.workers[3] == 1


def test_tasks_find_the_package_of_the_driver(story: Story) -> None:
    assert {package for batch in story.batches for package in batch.packages} == {tidegate.__file__}


def test_nothing_is_left_when_a_cluster_is_closed(story: Story) -> None:
    for part in ("Master", "Worker", "CoarseGrainedExecutorBackend", "pyspark.daemon"):
        assert any(part in process.command for process in story.processes), part
    assert story.left == []
    assert story.files == []


def test_nothing_is_left_when_a_driver_is_killed(tmp_path: Path) -> None:
    with Driver(tmp_path, "local") as running:
        running.await_more(1)
        processes = family(running.process.pid)
        assert any("pyspark.daemon" in process.command for process in processes)
        running.process.kill()
        await_that(lambda: not alive(processes), "all end", told=lambda: f"these do not: {alive(processes)}")
        await_that(lambda: not list(tmp_path.glob("tidegate-cluster-*")), "their files are gone")
