"""Nodes that move to other machines with their state."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.state.fleet.test_every_provider import gone
from tests.state.node_kit import COUNT, EMPTY, PIPELINE, TABLE, await_that, group, probes, values, written
from tidegate.batch.ticket import Ticket
from tidegate.config.settings import StateSettings
from tidegate.rescale.route import Route
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.fleet.nodes import Nodes

KEYS = range(200)


class Drive:
    """Takes batches through."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.batch_id = -1
        self.left = 0
        """Key groups that are on their way."""

    @property
    def ticket(self) -> Ticket:
        return Ticket(1, self.batch_id, 1)

    def begin(self) -> dict[int, int]:
        """What all keys have before the batch that begins."""
        self.batch_id += 1
        for node in self.nodes.expected:
            self.nodes.begin(node, self.ticket, None)
        found: dict[int, int] = {}
        for node in self.nodes.route.nodes:
            keys = self.keys(node)
            found |= values(self.nodes._client(node).get(self.ticket, TABLE.name, probes(keys)))
        return found

    def finish(self, value: int) -> None:
        """Every key gets a value."""
        for node in self.nodes.expected:
            rows = written(dict.fromkeys(self.keys(node), value))
            self.nodes._client(node).stage(self.ticket, TABLE.name, 0, rows)
            self.nodes.prepare(node, self.ticket)
        told, kept = self.nodes.expected, self.nodes.kept(self.batch_id, None)
        self.left = kept.arrived.groups_left
        self.nodes.committed(self.ticket, kept.manifest)
        for node in told:
            self.nodes.commit(node, self.ticket, None)

    def keys(self, node: int) -> list[int]:
        return [key for key in KEYS if group(key) in self.nodes.route.groups_of(node)]


@contextmanager
def driving(folder: Path, *, durable: bool, peers: bool) -> Iterator[tuple[LocalNodes, Drive]]:
    log, scratch = str(folder / "log"), folder / "nodes"
    with LocalNodes(
        2, pipeline=PIPELINE, log=log, scratch=scratch, durable=durable, timeout=10.0, generation=1
    ) as local:
        nodes = Nodes(
            StateSettings(durable=durable),
            provider=local,
            pipeline=PIPELINE,
            base=replace(EMPTY, tables=(TABLE,)),
            route=Route.even(COUNT, nodes=2, partitions=2),
            peers=peers,
        )
        yield local, Drive(nodes)


@pytest.mark.parametrize(("durable", "peers"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("hold", [True, False])
def test_a_node_moves_and_its_state_with_it(tmp_path: Path, durable: bool, peers: bool, hold: bool) -> None:
    with driving(tmp_path, durable=durable, peers=peers) as (local, drive):
        assert drive.begin() == {}
        drive.finish(1)
        old = local.nodes
        drive.nodes.stand_in(frozenset({1}))
        assert drive.nodes.handles == old
        drive.nodes.switch(replace(drive.nodes.route, version=2), hold=hold)
        new = drive.nodes.handles
        assert new[0] == old[0]
        assert new[1].name != old[1].name
        assert local.retiring[0] == old[1]
        assert not gone(old[1].pid)
        assert drive.begin() == dict.fromkeys(KEYS, 1)
        drive.finish(2)
        drive.nodes.budget = 1 << 30
        while drive.left:
            drive.begin()
            drive.finish(2)
        drive.nodes.shrink(2)
        await_that(lambda: gone(old[1].pid))
        assert not local.retiring
        assert drive.begin() == dict.fromkeys(KEYS, 2)


def test_if_the_old_one_dies_on_the_way_the_log_has_its_state(tmp_path: Path) -> None:
    with driving(tmp_path, durable=True, peers=True) as (local, drive):
        drive.begin()
        drive.finish(1)
        drive.nodes.stand_in(frozenset({0}))
        os.kill(local.nodes[0].pid, signal.SIGKILL)
        drive.nodes.switch(replace(drive.nodes.route, version=2), hold=False)
        assert drive.begin() == dict.fromkeys(KEYS, 1)
        assert drive.nodes.heal() == 0


def test_a_node_that_stands_by_ends_when_it_is_not_needed(tmp_path: Path) -> None:
    with driving(tmp_path, durable=True, peers=True) as (local, drive):
        before = local.nodes
        drive.nodes.stand_in(frozenset({0}))
        (standing_by,) = [member.handle for member in local._standing_by.values()]
        drive.nodes.cancel(2)
        await_that(lambda: gone(standing_by.pid))
        drive.nodes.switch(replace(drive.nodes.route, version=2), hold=False)
        assert local.nodes == before


def test_all_end_together(tmp_path: Path) -> None:
    with driving(tmp_path, durable=True, peers=True) as (local, drive):
        drive.nodes.stand_in(frozenset({0}))
        drive.nodes.switch(replace(drive.nodes.route, version=2), hold=False)
        drive.nodes.stand_in(frozenset({1}))
        every = [*local.nodes, *local.retiring, *(one.handle for one in local._standing_by.values())]
        assert len({node.name for node in every}) == 4
    assert all(gone(node.pid) for node in every)
