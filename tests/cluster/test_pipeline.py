"""Pipelines whose executors come and go with their parallelism, by the control API alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kit import await_that
from tests.cluster.pipeline import MAPPING, Event, Pipeline
from tests.rescale.test_sources import assert_all_sent, tasks
from tests.run.readings import read, sensors
from tests.run.steering import MANY, assert_counted
from tidegate.rescale.model import Ask, Rescale

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Story:
    """1 -> 2 -> 1 nodes, partitions and with them executors."""

    out: Path
    batches: list[dict[str, Any]]
    rescales: tuple[Rescale, Rescale]
    stayed: set[str]
    """The executors that were left in the end."""
    first: str
    added: str
    started: list[Event]
    """All tasks, as they began."""
    ended: list[Event]
    """All tasks, as they ended."""
    warm_up: list[Event]
    """The tasks that warmed up the second executor."""
    removed: list[Event]
    queries: int
    """How often a query was started."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("pipeline")
    with Pipeline(folder) as running:
        running.await_first()
        (first,) = running.executors()
        running.await_more()

        grown = running.rescale(2)
        await_that(lambda: len(running.executors()) == 2, "a second executor comes", told=running.said)
        (added,) = running.executors() - {first}
        await_that(lambda: len(running.tasks(added)) > 1, "it has tasks of batches", told=running.said)
        running.await_more()

        shrunk = running.rescale(1)
        await_that(lambda: len(running.executors()) == 1, "one executor leaves", told=running.said)
        running.await_more()
        stayed = running.executors()
        running.stop()
        yield Story(
            out=folder / "out",
            batches=running.batches(),
            rescales=(grown, shrunk),
            stayed=stayed,
            first=first,
            added=added,
            started=running.events("TaskStart"),
            ended=running.events("TaskEnd"),
            warm_up=running.warm_up(added),
            removed=running.events("ExecutorRemoved"),
            queries=len(running.events("QueryStartedEvent")),
        )


def test_state_and_partitions_follow_the_asks(story: Story) -> None:
    assert [rescale.phase for rescale in story.rescales] == ["settled", "settled"]
    assert [rescale.nodes for rescale in story.rescales] == [(1, 2), (2, 1)]
    assert [rescale.parallelism for rescale in story.rescales] == [(1, 2), (2, 1)]


def test_the_query_is_never_restarted(story: Story) -> None:
    assert story.queries == 1
    assert [batch["batch_id"] for batch in story.batches] == list(range(len(story.batches)))


def test_the_second_executor_is_warmed_up_once_and_none_in_its_place(story: Story) -> None:
    (warm_up,) = story.warm_up
    assert _is_by(warm_up, story.added)


def test_the_second_executor_leaves_once_it_has_no_tasks(story: Story) -> None:
    assert story.stayed == {story.first}
    assert {event["Executor ID"] for event in story.removed} == {story.added}
    # Spark tells it twice: that the executor has gone, and that its worker has.
    left = story.removed[0]
    assert "decommission" in left["Removed Reason"]
    begun = {event["Task Info"]["Task ID"] for event in story.started if _is_by(event, story.added)}
    ended = {
        event["Task Info"]["Task ID"]: event["Task Info"]["Finish Time"]
        for event in story.ended
        if _is_by(event, story.added)
    }
    assert begun
    assert begun == set(ended)
    assert max(ended.values()) <= left["Timestamp"]


def test_no_task_is_interrupted(story: Story) -> None:
    # What an executor leaves between two stages of a batch is computed again.
    assert {event["Task End Reason"]["Reason"] for event in story.ended} <= {"Success", "FetchFailed"}
    assert {event["Task Info"]["Attempt"] for event in story.ended} == {0}


def test_the_output_is_that_of_an_undisturbed_run(story: Story) -> None:
    assert_counted(story.out, sum(batch["rows_in"] for batch in story.batches))


def _is_by(event: Event, executor: str) -> bool:
    return bool(event["Task Info"]["Executor ID"] == executor)


def test_executors_of_a_pipeline_without_state_come_and_go(tmp_path: Path) -> None:
    with Pipeline(tmp_path, MAPPING) as running:
        running.await_first()
        (first,) = running.executors()
        assert running.apply(Ask(parallelism=2)).nodes == (0, 0)
        await_that(lambda: len(running.executors()) == 2, "a second executor comes", told=running.said)
        (added,) = running.executors() - {first}
        await_that(lambda: len(running.tasks(added)) > 1, "it has tasks of batches", told=running.said)
        running.apply(Ask(parallelism=1))
        await_that(lambda: len(running.executors()) == 1, "one executor leaves", told=running.said)
        running.await_more()
        running.stop()
        batches = running.batches()
    out = read(tmp_path / "out")
    assert_all_sent(out, sensors(MANY), sum(batch["rows_in"] for batch in batches))
    assert {*tasks(out).values()} == {1, 2}
