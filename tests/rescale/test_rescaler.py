"""The migration's shell on real nodes, without Spark, threads or a real clock."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate import config
from tidegate.batch.outcome import Outcome
from tidegate.batch.ticket import Ticket
from tidegate.errors import ControlError
from tidegate.ledger.ledger import Ledger
from tidegate.rescale.model import Ask
from tidegate.rescale.rescaler import Rescaler, RestartRequestedError
from tidegate.rescale.route import Route
from tidegate.run import recovery
from tidegate.run.checkpoint import Checkpoint
from tidegate.security.security import Security
from tidegate.state.fleet.nodes import Arrived, Nodes, StateResult
from tidegate.state.fleet.stateless import Stateless
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
        nodes, _ = recovery.start(
            Checkpoint.at(tmp_path),
            ledger,
            Counting(),
            settings,
            Security("t"),
            pipeline="desk",
            parallelism=2,
        )
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


def test_nodes_move_away_from_a_machine_that_goes_by_a_rescale_of_their_own(tmp_path: Path) -> None:
    with opened(tmp_path, transfer="peer") as desk:
        (old,) = desk.nodes.handles
        leaving = going(desk)
        leaving.append(old.host)
        desk.rescaler.committed(outcome(0, 0), seconds=0.1)
        (drain,) = desk.rescaler.history.all()
        assert (drain.ask.kind, drain.phase, drain.nodes) == ("drain", "starting", (1, 1))
        leaving.clear()  # Here the node that stands in is on the same machine.
        desk.do()
        desk.rescaler.boundary(1)
        assert desk.nodes.route.version == 2
        (new,) = desk.nodes.handles
        assert new.name != old.name
        assert desk.nodes._may_live(old)
        desk.nodes.committed(Ticket(1, 1), StateManifest(1, 256, None, ()))
        desk.rescaler.committed(outcome(1, 5), seconds=0.1)
        assert desk.rescaler.phase == "moving"
        desk.rescaler.committed(outcome(2, 0), seconds=0.1)
        assert desk.rescaler.history.get(1).phase == "settled"
        assert not desk.nodes._may_live(old)


def test_one_that_cannot_move_is_not_tried_with_every_batch(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        leaving = going(desk)
        leaving.append(desk.nodes.handles[0].host)
        shutil.rmtree(desk.folder / "nodes")
        for number in range(3):
            desk.rescaler.committed(outcome(number, 0), seconds=0.1)
            desk.do()
        assert [each.phase for each in desk.rescaler.history.all()] == ["failed"]


def test_a_rescale_takes_along_what_is_on_machines_that_go_with_it(tmp_path: Path) -> None:
    retained: list[int] = []
    with opened(tmp_path, nodes="2") as desk:
        desk.rescaler._retain = retained.append
        leaving = going(desk)
        leaving.append(desk.nodes.handles[0].host)
        before = desk.nodes.handles
        desk.rescaler.apply(Ask(nodes=1, parallelism=1))
        assert retained == [1]
        desk.do()
        desk.rescaler.boundary(0)
        after = desk.nodes.handles
        assert (after[0].name != before[0].name, after[1]) == (True, before[1])


def test_a_rescale_that_fails_lets_machines_stay(tmp_path: Path) -> None:
    retained: list[int] = []
    with opened(tmp_path, nodes="2") as desk:
        desk.rescaler._retain = retained.append
        desk.rescaler.apply(Ask(nodes=3))
        shutil.rmtree(desk.folder / "nodes")
        desk.do()
        assert [each.phase for each in desk.rescaler.history.all()] == ["failed"]
        assert retained == [3, 2]


def test_a_rescale_that_is_refused_lets_machines_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained: list[int] = []
    with opened(tmp_path, nodes="2") as desk:
        desk.rescaler._retain = retained.append

        def refuse(*_: object) -> None:
            raise ControlError("not now")

        monkeypatch.setattr(desk.rescaler._migration, "handle", refuse)
        with pytest.raises(ControlError, match="not now"):
            desk.rescaler.apply(Ask(nodes=1, parallelism=1))
        assert retained == [1, 2]


def test_a_drain_without_a_machine_that_goes_is_refused(desk: Desk) -> None:
    with pytest.raises(ControlError, match="no node is on a machine that is going away"):
        desk.rescaler.apply(Ask(kind="drain"))


def going(desk: Desk) -> list[str]:
    """The machines that are going away; to be added to."""
    hosts: list[str] = []
    fleet: Any = desk.nodes._provider
    fleet._launcher.leaving = lambda: frozenset(hosts)
    plain = fleet.leaving
    # What a thread looks up now and then on real machines.
    fleet.leaving = lambda *, now=False: plain(now=True)
    return hosts


# -- without state -----------------------------------------------------------------------------------------


@dataclass
class Slots:
    """A pipeline without state, on so many partitions; what its cluster was asked for."""

    stateless: Stateless
    rescaler: Rescaler
    fitted: list[int]


@pytest.fixture
def slots() -> Slots:
    stateless, fitted = Stateless(Route.stateless(2)), list[int]()
    rescaler = Rescaler(
        stateless,
        config.load(environ={}).state,
        fit=fitted.append,
        interval=1.0,
        parallelism=2,
        steps=[],
        spawn=lambda work: work(),
        clock=lambda: 1000.0,
    )
    return Slots(stateless, rescaler, fitted)


def test_without_state_the_next_batch_has_the_new_parallelism_and_nothing_moves(slots: Slots) -> None:
    rescaler = slots.rescaler
    view = rescaler.plan(Ask(parallelism=4))
    assert (view.nodes, view.parallelism, view.moves, view.busiest) == ((0, 0), (2, 4), (), (0.0, 0.0))
    assert slots.stateless.route.parallelism == 2, "a plan changes nothing"
    rescaler.apply(Ask(parallelism=4))
    assert slots.fitted == [4], "executors come before they are needed"
    assert slots.stateless.route.parallelism == 2
    rescaler.boundary(7)
    assert slots.stateless.route.parallelism == 4
    rescaler.committed(outcome(7, groups_left=0), seconds=0.1)
    record = rescaler.history.get(1)
    assert (record.phase, record.first_batch, record.parallelism) == ("settled", 7, (2, 4))


def test_without_state_executors_leave_when_no_batch_needs_them(slots: Slots) -> None:
    slots.rescaler.apply(Ask(parallelism=1))
    slots.rescaler.boundary(0)
    assert slots.fitted == []
    slots.rescaler.committed(outcome(0, groups_left=0), seconds=0.1)
    assert slots.fitted == [1]


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (Ask(nodes=2), "has no keyed step, so there are no state nodes"),
        (Ask(parallelism=4, nodes=1), "only its parallelism can be changed"),
        (Ask(kind="rebalance"), "no state to move"),
        (Ask(parallelism=4, step="count"), "has no keyed step"),
        (Ask(parallelism=2), "nothing to change: there are 2 partitions"),
        (Ask(parallelism=0), "0 partitions were asked for"),
    ],
)
def test_without_state_only_another_parallelism_can_be_asked_for(slots: Slots, ask: Ask, why: str) -> None:
    for what in (slots.rescaler.plan, slots.rescaler.apply):
        with pytest.raises(ControlError, match=why):
            what(ask)
    assert slots.rescaler.history.all() == ()
    slots.rescaler.boundary(0)
    assert slots.stateless.route == Route.stateless(2)


def test_without_state_a_restart_begins_another_query_on_the_new_route(slots: Slots) -> None:
    slots.rescaler.apply(Ask(parallelism=4, strategy="restart"))
    with pytest.raises(RestartRequestedError):
        slots.rescaler.boundary(3)
    assert slots.rescaler.restarted()
    assert slots.stateless.route.parallelism == 4
    slots.rescaler.committed(outcome(3, groups_left=0), seconds=0.1)
    assert slots.rescaler.history.get(1).phase == "settled"
