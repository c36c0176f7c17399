"""Commands carried out by a node in this process, without a server."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.state.node_kit import ALL, EMPTY, PIPELINE, TABLE, probes, values, written
from tests.state.shard_kit import Make
from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, StateError
from tidegate.state.node.dispatch import Answer, dispatch, wanted
from tidegate.state.node.node import StateNode
from tidegate.state.wire import commands as wire


@pytest.fixture
def node(make: Make) -> Iterator[StateNode]:
    found = StateNode(make(), name="n", staged=1 << 20)
    yield found
    found.close()


def sent(node: StateNode, command: wire.Command, rows: pa.Table | None = None) -> Answer:
    """As it comes over a wire."""
    return dispatch(node, wire.decode(wire.encode(command, PIPELINE), PIPELINE), rows)


def test_a_batch_by_commands_alone(node: StateNode) -> None:
    ticket, rows = Ticket(1, 0), written({1: 10, 2: 20})
    sent(node, wire.Begin(ticket, EMPTY, ALL, None))
    stage = wire.Stage(ticket, TABLE.name, 0, rows.num_rows, {"late": 3})
    assert wanted(node, stage) == rows.schema
    sent(node, stage, rows)
    answer = sent(node, wire.Prepare(ticket))
    assert isinstance(answer, wire.PrepareAnswer)
    assert (answer.tables, answer.stats) == ({TABLE.name: {0: 2}}, {"late": 3})
    sent(node, wire.Commit(ticket, None))
    status = sent(node, wire.Status())
    assert isinstance(status, wire.NodeStatus)
    assert status.phase == "committed"
    found = sent(node, wire.FetchKeys(TABLE.name, ALL, 0, 1), probes([2]))
    assert values(found) == {2: 20}


def test_a_long_answer_comes_in_pages(node: StateNode) -> None:
    ticket, rows = Ticket(1, 0), written(dict.fromkeys(range(2000), 7))
    sent(node, wire.Begin(ticket, EMPTY, ALL, None))
    sent(node, wire.Stage(ticket, TABLE.name, 0, rows.num_rows), rows)
    sent(node, wire.Prepare(ticket))
    sent(node, wire.Commit(ticket, None))
    pages: list[pa.Table] = []
    further: int | None = 0
    while further is not None:
        page, further = wire.unpage(sent(node, wire.FetchRange(TABLE.name, ALL, 0, further, 1000)))
        pages.append(page)
    assert len(pages) > 1
    assert sorted(pa.concat_tables(pages)["id"].to_pylist()) == list(range(2000))


def test_a_driver_that_leads_a_node_or_asks_for_it_keeps_it(make: Make) -> None:
    now = 0.0
    node = StateNode(make(), name="n", staged=1 << 20, lease=30, clock=lambda: now)
    ticket = Ticket(2, 0)
    requests: list[wire.Command] = [
        wire.Renew(2),
        wire.Begin(ticket, EMPTY, ALL, None),
        wire.Prepare(ticket),
        wire.Commit(ticket, None),
    ]
    for request in requests:
        now += 20
        assert node.lease_left == 10
        sent(node, request)
        assert node.lease_left == 30
    with pytest.raises(FencedError):
        sent(node, wire.Renew(1))
    sent(node, wire.Status())
    now += 30
    assert node.lease_left == 0
    with pytest.raises(StateError, match="given up"):
        sent(node, wire.Renew(2))
    node.close()
