"""Pipelines whose state nodes are with Spark's executors, or on machines of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kit import Process, alive, await_that, family
from tests.cluster.pipeline import Pipeline
from tests.run.steering import assert_counted
from tests.state.fleet import providers
from tidegate.control.controls import NodeLine
from tidegate.rescale.model import Rescale

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]
_SUPERVISOR = "tidegate.state.supervisor.process"


@dataclass(frozen=True, slots=True)
class Story:
    """2 -> 3 nodes, kill -9 of one, 3 -> 2 nodes."""

    out: Path
    checkpoint: Path
    batches: list[dict[str, Any]]
    rescales: Sequence[Rescale]
    before_kill: Sequence[NodeLine]
    after_kill: Sequence[NodeLine]
    started: list[Process]
    """What started the nodes."""


def nodes_of(running: Pipeline) -> tuple[NodeLine, ...]:
    return tuple(running.client.status().nodes)


def hosts_of(nodes: Sequence[NodeLine]) -> list[str]:
    return [node.address.rpartition(":")[0] for node in nodes]


def told(folder: Path, running: Pipeline, act: Callable[[], object] = lambda: None) -> Story:
    running.await_first()
    running.await_more()
    grown = running.rescale(3)
    running.await_more()
    before = nodes_of(running)
    started = [one for one in family(os.getpid()) if _SUPERVISOR in one.command]
    os.kill(before[1].pid, signal.SIGKILL)
    await_that(lambda: nodes_of(running)[1].name != before[1].name, "it is replaced", told=running.said)
    running.await_more()
    after = nodes_of(running)
    shrunk = running.rescale(2)
    running.await_more()
    act()
    running.stop()
    checkpoint = folder / ".tidegate" / "count"
    return Story(folder / "out", checkpoint, running.batches(), [grown, shrunk], before, after, started)


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("executors")
    with Pipeline(
        folder, cluster__workers=2, engine__parallelism=2, state__nodes=2, state__provider="executors"
    ) as running:
        yield told(folder, running)


@dataclass(frozen=True, slots=True)
class Moving:
    """What happened when one machine joined and another one left."""

    first: Sequence[NodeLine]
    joined: Sequence[NodeLine]
    left: Sequence[NodeLine]
    code: int
    """With which its supervisor ended."""
    history: Sequence[Rescale]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Story, Moving]]:
    folder, machines = tmp_path_factory.mktemp("remote"), tmp_path_factory.mktemp("machines")
    with ExitStack() as stack:
        leaving = stack.enter_context(providers.supervisor(machines, "127.0.0.2"))
        stack.enter_context(providers.supervisor(machines, "127.0.0.3"))
        running = stack.enter_context(
            Pipeline(
                folder,
                cluster__workers=0,
                engine__parallelism=2,
                state__nodes=2,
                state__provider="remote",
                state__registry=machines / "registry",
                state__token_file=machines / "token",
                state__lease="8 seconds",
                state__transfer="peer",
            )
        )
        running.await_first()
        first = nodes_of(running)
        stack.enter_context(providers.supervisor(machines, "127.0.0.4"))
        seen: list[Any] = []

        def leave() -> None:
            leaving.process.terminate()
            seen.append(leaving.process.wait(240))
            running.await_more()
            seen.append(nodes_of(running))
            seen.append(running.client.history())

        story = told(folder, running, leave)
        code, left, history = seen
        yield story, Moving(first, story.before_kill, left, code, history)


@pytest.fixture(params=["executors", "remote"])
def story(request: pytest.FixtureRequest) -> Story:
    found = request.getfixturevalue(request.param)
    return found if isinstance(found, Story) else found[0]


def test_no_batch_and_no_row_is_missing_or_there_twice(story: Story) -> None:
    assert [batch["batch_id"] for batch in story.batches] == list(range(len(story.batches)))
    assert_counted(story.out, sum(batch["rows_in"] for batch in story.batches))


def test_the_rescales_settle(story: Story) -> None:
    assert [(rescale.phase, rescale.nodes) for rescale in story.rescales] == [
        ("settled", (2, 3)),
        ("settled", (3, 2)),
    ]


def test_a_killed_node_is_replaced_by_another_one(story: Story) -> None:
    before, after = story.before_kill, story.after_kill
    assert [node.name for node in after][0::2] == [node.name for node in before][0::2]
    assert after[1].name != before[1].name


def test_spark_started_one_supervisor_and_it_has_ended(executors: Story) -> None:
    assert len(executors.started) == 1
    await_that(lambda: not alive(executors.started), "it ends with the run")
    assert len({*hosts_of(executors.before_kill)}) == 1


def test_nodes_are_spread_over_machines_also_those_that_join(remote: tuple[Story, Moving]) -> None:
    _, moving = remote
    assert hosts_of(moving.first) == ["127.0.0.2", "127.0.0.3"]
    assert hosts_of(moving.joined) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


def test_a_machine_leaves_when_its_nodes_have_moved_away(remote: tuple[Story, Moving]) -> None:
    _, moving = remote
    assert moving.code == 0
    assert "127.0.0.2" not in hosts_of(moving.left)
    drain = moving.history[-1]
    assert (drain.ask.kind, drain.phase, drain.nodes) == ("drain", "settled", (2, 2))
