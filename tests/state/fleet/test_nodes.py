"""What the driver tells its nodes, without any."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.batch.ticket import Ticket
from tidegate.config.settings import StateSettings
from tidegate.errors import NodeError, StateError
from tidegate.rescale.route import Route
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.log.manifest import StateManifest
from tidegate.state.table.table import StateTable
from tidegate.state.wire.access import Identity
from tidegate.state.wire.commands import Begin

TABLE = StateTable("count", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))


class Provider:
    """Addresses alone."""

    token = ""
    identity: Identity | None = None

    def __init__(self, *addresses: str) -> None:
        self.nodes = tuple(NodeHandle(f"node-{address}", address, 1) for address in addresses)

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


def test_without_a_log_the_state_of_such_an_owner_is_lost() -> None:
    mine = nodes([], durable=False)
    mine.switch(Route.even(4, nodes=2, partitions=2), hold=False)
    mine._provider = Provider("c", "a")
    with pytest.raises(StateError, match="2-3 was lost with the node at a"):
        mine.begin(1, Ticket(1, 0, 2), None)


def test_nodes_that_were_closed_say_so() -> None:
    mine = nodes([])
    mine._provider = Provider()
    with pytest.raises(NodeError, match="have been closed"):
        mine.begin(0, Ticket(1, 0, 1), None)
