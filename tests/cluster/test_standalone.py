"""A session on a master that was there before, whose workers come and go."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.driver import MEMORY
from tests.cluster.kit import Batch, Driver, is_whole
from tidegate.cluster.daemons import start_master, start_worker
from tidegate.cluster.standalone import Standalone
from tidegate.errors import ClusterError

slow = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Story:
    """A second worker joins, then one executor, two again, and kill -9 of a worker."""

    batches: list[Batch]
    before_kill: int
    answers: tuple[int, int]
    first: str
    joined: str
    stayed: set[str]
    again: str
    alive: list[bool]
    """Whether the workers were there after one of their executors was sent away."""
    survivors: set[str]
    runs: set[str]
    query: dict[str, Any]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("standalone")
    with ExitStack() as stack:
        master, address = start_master(folder / "master")
        stack.callback(master.end)

        def worker(name: str) -> Any:
            started = start_worker(folder / name, address, cores=1, memory=MEMORY)
            stack.callback(started.end)
            return started

        workers = [worker("one")]
        running = stack.enter_context(Driver(folder, address))
        runs = {running.ask("query")["run"]}
        (first,) = running.await_executors(1)
        running.await_more()

        workers.append(worker("two"))
        (joined,) = running.await_executors(2) - {first}
        running.await_batch(
            lambda batch: batch.executors == {first, joined}, "the worker that joined has tasks"
        )

        running.await_batch(lambda batch: joined in batch.warm, "it is warm")

        shrunk = running.ask("fit 1")
        stayed = running.await_executors(1)
        running.await_more()
        there = [one.alive for one in workers]

        grown = running.ask("fit 2")
        (again,) = running.await_executors(2) - {first}
        running.await_batch(lambda batch: batch.executors == {first, again}, "the new executor has tasks")

        before_kill = len(running.batches())
        os.kill(workers[1].pid, signal.SIGKILL)
        survivors = running.await_executors(1)
        running.await_more()
        query = running.ask("query")
        runs.add(query["run"])
        assert running.ask("close") == "closed"
        yield Story(
            batches=running.batches(),
            before_kill=before_kill,
            answers=(shrunk, grown),
            first=first,
            joined=joined,
            stayed=stayed,
            again=again,
            alive=there,
            survivors=survivors,
            runs=runs,
            query=query,
        )


class TestUnderAQuery:
    """What the story tells."""

    pytestmark = [*slow, pytest.mark.soak]

    def test_it_goes_on_while_executors_come_and_go(self, story: Story) -> None:
        assert story.query["active"], story.query
        assert len(story.runs) == 1
        assert story.answers == (1, 2)
        assert is_whole(story.batches)

    def test_a_worker_that_joins_is_taken_up_unasked(self, story: Story) -> None:
        assert any(story.joined in batch.executors for batch in story.batches)

    def test_a_worker_that_joins_is_warmed_up(self, story: Story) -> None:
        assert any(story.joined in batch.warm for batch in story.batches)
        assert not any(story.first in batch.warm for batch in story.batches)

    def test_an_executor_leaves_and_its_worker_stays(self, story: Story) -> None:
        assert story.stayed == {story.first}
        assert story.alive == [True, True]

    def test_an_executor_is_had_back(self, story: Story) -> None:
        assert story.again not in (story.first, story.joined)
        assert any(story.again in batch.executors for batch in story.batches)

    def test_no_task_is_interrupted_by_a_change_of_size(self, story: Story) -> None:
        assert all(batch.attempts == 1 for batch in story.batches[: story.before_kill])

    def test_it_outlives_a_killed_worker(self, story: Story) -> None:
        assert story.survivors == {story.first}
        assert story.batches[-1].executors == {story.first}


def test_a_master_of_another_kind_is_refused() -> None:
    with pytest.raises(ClusterError, match="spark://host:7077"):
        Standalone("local[*]")


def test_nothing_is_asked_of_a_session_that_is_not_there() -> None:
    with Standalone("spark://127.0.0.1:7077") as cluster:
        assert cluster.executors() == ()
        with pytest.raises(ClusterError, match="attach"):
            cluster.fit(2)
