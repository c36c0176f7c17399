"""What the driver tells its nodes, without any."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.state import node_kit
from tidegate.batch.ticket import Ticket
from tidegate.batch.time import Time
from tidegate.config.settings import StateSettings
from tidegate.errors import NodeError, StateLostError
from tidegate.rescale.route import Route
from tidegate.security.security import Security
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.table.table import StateTable
from tidegate.state.task.state import TaskState
from tidegate.state.wire.client import NodeClient
from tidegate.state.wire.commands import Begin, NodeStatus

TABLE = StateTable("count", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))


pids = itertools.count(1)


class Provider:
    """Addresses alone."""

    security = Security("")

    def __init__(self, *addresses: str) -> None:
        self.nodes = tuple(
            NodeHandle(f"node-{address}", address, next(pids), "localhost") for address in addresses
        )

    retiring: tuple[NodeHandle, ...] = ()

    def take_over(self) -> dict[int, NodeHandle]:
        return {}

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody should ask for {name}")


class Client:
    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def begin(self, command: Begin) -> None:
        self._told.append(command.origins)


def nodes(told: list[Any], *, durable: bool = True) -> Nodes:
    return Nodes(
        StateSettings(durable=durable),
        provider=Provider("a", "b"),
        pipeline="p",
        base=StateManifest(-1, 4, None, (TABLE,)),
        route=Route.even(4, nodes=1, partitions=1),
        peers=True,
        connect=lambda address: Client(told),  # type: ignore[arg-type,return-value]
    )


def test_a_new_owner_hears_where_its_state_is() -> None:
    told: list[Any] = []
    mine = nodes(told)
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=False)
    mine.begin(1, Ticket(1, 0, 1), None)
    assert told == [{"a": frozenset({2, 3})}]


def test_a_node_at_the_address_of_the_old_owner_is_not_sent_to_itself() -> None:
    """That owner has died; the log has what it had."""
    told: list[Any] = []
    mine = nodes(told)
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=False)
    mine._provider = Provider("c", "a")
    mine.begin(1, Ticket(1, 0, 2), None)
    assert told == [{}]


def test_an_old_owner_whose_address_another_node_has_taken_is_not_asked() -> None:
    """It has died, and that node has not got its state, though nobody has noticed yet."""
    told: list[Any] = []
    mine = nodes(told)
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=False)
    now = Provider()
    now.nodes = (*mine._provider.nodes, NodeHandle("new", "a", next(pids), "localhost"))
    mine._provider = now
    mine.begin(1, Ticket(1, 0, 1), None)
    assert told == [{}]


def test_without_a_log_the_state_of_such_an_owner_is_lost() -> None:
    mine = nodes([], durable=False)
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=False)
    mine._provider = Provider("c", "a")
    with pytest.raises(StateLostError, match=r"2-3 was in the memory of node-a alone, as .* and is lost"):
        mine.begin(1, Ticket(1, 0, 2), None)


def test_an_old_owner_that_was_replaced_is_not_asked() -> None:
    """Wherever its successor listens: that one knows nothing of the state."""
    told: list[Any] = []
    mine = nodes(told)
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=False)
    mine._provider = Provider("a", "b")
    mine.begin(1, Ticket(1, 0, 2), None)
    assert told == [{}]


def test_what_nodes_store_is_told_without_asking_them() -> None:
    def nobody(address: str) -> Any:
        raise AssertionError(f"nobody should ask {address}")

    mine = nodes([])
    mine._connect = nobody
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=False)
    runs = (RunRef("1-a.run", 1, frozenset({0, 1, 2}), 9, 300), RunRef("2-b.run", 2, frozenset({3}), 9, 50))
    mine.committed(Ticket(1, 2, 1), StateManifest(2, 4, None, (TABLE,), runs))
    assert mine.stored() == [200, 150]


class Waiting(Client):
    """Says how much there is to come, from what it is given; the last one again and again."""

    def __init__(self, told: list[Any], left: list[tuple[int, int]]) -> None:
        super().__init__(told)
        self._left = left

    def status(self) -> NodeStatus:
        left, received = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return NodeStatus("b", Ticket(1, 0, 1), "open", frozenset(), 0, 0.0, {}, left, received)


def waiting(left: list[tuple[int, int]], *, dead: str | None = None) -> tuple[Nodes, list[Any], list[float]]:
    """Nodes whose switch is held until the state has come, what the new owner is told, and the pauses."""
    told: list[Any] = []
    pauses: list[float] = []

    def connect(address: str) -> Any:
        if address == dead:
            raise NodeError(f"{address} does not answer", node=address)
        return Waiting(told, left)

    mine = nodes(told, durable=dead is None)
    mine._connect, mine._sleep = connect, pauses.append
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=True)
    return mine, told, pauses


def test_a_batch_is_held_as_long_as_state_comes() -> None:
    steps = [(2, received) for received in range(0, 40_000, 10)]
    mine, _, pauses = waiting([*steps, (0, 40_000)])
    mine.begin(1, Ticket(1, 0, 1), None)
    assert len(pauses) == len(steps)


def test_a_batch_is_not_held_for_ever_when_nothing_comes() -> None:
    mine, told, pauses = waiting([(2, 7)])
    with pytest.raises(
        NodeError, match="is waiting for the state of 2 key groups, and has received none of it for 30 s"
    ):
        mine.begin(1, Ticket(1, 0, 1), None)
    assert 30 <= sum(pauses) < 40
    assert len(told) > 10, "the node was told again, so that it asked again"


def test_without_a_log_a_batch_is_not_held_for_an_old_owner_that_is_dead() -> None:
    mine, _, pauses = waiting([(2, 7)], dead="a")
    with pytest.raises(NodeError, match="a does not answer"):
        mine.begin(1, Ticket(1, 0, 1), None)
    assert sum(pauses) < 2


def test_state_without_a_log_is_lost_with_its_owner_and_that_is_said(tmp_path: Path) -> None:
    with LocalNodes(
        2,
        pipeline=node_kit.PIPELINE,
        log=str(tmp_path / "log"),
        scratch=tmp_path / "nodes",
        durable=False,
        timeout=2.0,
    ) as local:
        mine = Nodes(
            StateSettings(durable=False, timeout="2 seconds"),
            provider=local,
            pipeline=node_kit.PIPELINE,
            base=node_kit.EMPTY,
            route=Route.even(node_kit.COUNT, nodes=1, partitions=1),
            peers=True,
        )
        first = Ticket(1, 0, 1)
        mine.begin(0, first, None)
        rows = node_kit.written({key: key for key in range(200)})
        mine._client(0).stage(first, node_kit.TABLE.name, 0, rows)
        mine.prepare(0, first)
        mine.committed(first, mine.kept(0, None).manifest)
        mine.commit(0, first, None)
        mine.switch(Route.even(node_kit.COUNT, nodes=2, partitions=2), hold=True)
        os.kill(local.nodes[0].pid, signal.SIGKILL)
        with pytest.raises(NodeError, match="does not answer"):
            mine.begin(1, Ticket(1, 1, 1), None)
        assert mine.heal() == 1
        with pytest.raises(
            StateLostError, match=r"8-15 was in the memory of g0-node-0-.* alone, as .* is lost with it"
        ):
            mine.begin(1, Ticket(1, 1, 2), None)
        with pytest.raises(StateLostError, match=r"0-7 was in the memory of g0-node-0"):
            mine.begin(0, Ticket(1, 1, 2), None)


def test_a_task_shows_the_certificate_of_its_run(tmp_path: Path) -> None:
    with LocalNodes(
        1, pipeline=node_kit.PIPELINE, log=str(tmp_path / "log"), scratch=tmp_path / "nodes", bind="127.0.0.1"
    ) as local:
        mine = Nodes(
            StateSettings(),
            provider=local,
            pipeline=node_kit.PIPELINE,
            base=node_kit.EMPTY,
            route=Route.even(node_kit.COUNT, nodes=1, partitions=1),
            peers=False,
        )
        ticket = Ticket(1, 0, 1)
        mine.begin(0, ticket, None)
        assignment = mine.assignment(ticket, Time(None, None))
        state = TaskState(pickle.loads(pickle.dumps(assignment)), 0, tmp_path)
        state.put(node_kit.TABLE, node_kit.written({1: 10}))
        state.stage(node_kit.TABLES, late=0)
        assert mine.prepare(0, ticket) == mine.expected[0]
        assert local.security.token not in repr(assignment)


def test_a_node_that_is_not_on_this_machine_is_told_from_one_that_hangs() -> None:
    client = NodeClient("unix:/tmp/nowhere/at/all", security=Security("t"), pipeline="p", timeout=5.0)
    with pytest.raises(NodeError, match=r"on another machine; .* set state\.bind"):
        client.status()


def test_nodes_that_were_closed_say_so() -> None:
    mine = nodes([])
    mine._provider = Provider()
    with pytest.raises(NodeError, match="have been ended"):
        mine.begin(0, Ticket(1, 0, 1), None)
