"""The migration's shell on real nodes, without Spark, threads or a real clock."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate import config
from tidegate.batch.outcome import Outcome
from tidegate.errors import ControlError
from tidegate.ledger.ledger import Ledger
from tidegate.rescale.model import Ask
from tidegate.rescale.rescaler import Rescaler
from tidegate.run import recovery
from tidegate.state.fleet.nodes import Arrived, Nodes, StateResult
from tidegate.state.log.manifest import StateManifest
from tidegate.state.table.table import StateTable


@dataclass(frozen=True)
class Counting:
    tables: tuple[StateTable, ...] = (
        StateTable("count", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())])),
    )
    meaning: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass
class Desk:
    """A rescaler whose work in the background waits until the test does it."""

    folder: Path
    nodes: Nodes
    rescaler: Rescaler
    waiting: list[Callable[[], None]]

    def owners(self) -> int:
        """Nodes that own key groups."""
        return len(self.nodes.route.nodes)

    def do(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with opened(tmp_path) as found:
        yield found


@contextmanager
def opened(tmp_path: Path, **state: str) -> Iterator[Desk]:
    ledger = Ledger(tmp_path / "ledger")
    ledger.take_over()
    overrides = {f"state.{name}": value for name, value in state.items()}
    settings = config.load(environ={}, overrides={"state.nodes": 1, **overrides})
    with ExitStack() as stack:
        nodes, _ = recovery.start(tmp_path, ledger, Counting(), settings, pipeline="desk", parallelism=2)
        assert nodes is not None
        stack.callback(nodes.close)
        waiting: list[Callable[[], None]] = []
        rescaler = Rescaler(
            nodes,
            settings.state,
            fit=lambda slots: None,
            interval=1.0,
            parallelism=2,
            steps=["count"],
            spawn=waiting.append,
            clock=lambda: 1000.0,
        )
        yield Desk(tmp_path, nodes, rescaler, waiting)


def test_nodes_start_in_the_background_and_the_next_batch_is_on_the_new_route(desk: Desk) -> None:
    asked = desk.rescaler.apply(Ask(nodes=2))
    assert (asked.phase, asked.asked_at) == ("starting", "1970-01-01T00:16:40.000+00:00")
    desk.rescaler.boundary(0)
    assert desk.owners() == 1, "its nodes are not up yet"
    desk.do()
    desk.rescaler.boundary(1)
    assert desk.owners() == 2
    assert desk.rescaler.history.get(1).first_batch == 1


def test_a_rescale_that_fails_tells_why_and_what_came_before(desk: Desk) -> None:
    desk.rescaler.apply(Ask(nodes=2))
    shutil.rmtree(desk.folder / "nodes")
    desk.do()
    failed = desk.rescaler.history.get(1)
    assert failed.phase == "failed"
    assert failed.why is not None
    assert "No such file" in failed.why
    assert failed.why.endswith("(before that: rescale 1 (hybrid) to 2 nodes was asked for)")
    desk.rescaler.boundary(0)
    assert desk.owners() == 1


def test_a_second_one_is_refused_with_the_story_of_the_first(desk: Desk) -> None:
    desk.rescaler.apply(Ask(nodes=2))
    with pytest.raises(ControlError, match="has not switched") as refused:
        desk.rescaler.apply(Ask(nodes=3))
    assert refused.value.story == ("rescale 1 (hybrid) to 2 nodes was asked for",)


def outcome(batch_id: int, groups_left: int) -> Outcome:
    kept = StateResult(StateManifest(batch_id, 256, None, ()), 0, 0, 0, 0, Arrived(groups_left=groups_left))
    return Outcome(batch_id, 1000.0 + batch_id, {}, {}, {}, None, {}, 1, kept)


def test_what_a_lazy_rescale_has_left_behind_follows_after_a_while(tmp_path: Path) -> None:
    with opened(tmp_path, transfer="peer") as desk:
        desk.rescaler.apply(Ask(nodes=2, strategy="lazy"))
        desk.do()
        desk.rescaler.boundary(0)
        budgets = []
        for number in range(102):
            desk.rescaler.committed(outcome(number, groups_left=7), seconds=0.1)
            budgets.append(desk.nodes.budget)
        assert set(budgets[:99]) == {0}, "for a while only what is needed moves"
        assert min(budgets[99:]) > 0
        assert desk.rescaler.phase == "moving"
