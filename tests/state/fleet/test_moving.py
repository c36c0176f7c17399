"""Key groups on their way between real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.state.node_kit import (
    ALL,
    COUNT,
    EMPTY,
    PIPELINE,
    TABLE,
    await_that,
    connected,
    group,
    probes,
    values,
    written,
)
from tidegate.batch.ticket import Ticket
from tidegate.errors import StaleError, StateError
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.log.manifest import StateManifest, together
from tidegate.state.table.keys import Groups
from tidegate.state.wire.client import NodeClient
from tidegate.state.wire.commands import Begin, PrepareAnswer

LEFT, RIGHT, NOTHING = frozenset(range(COUNT // 2)), frozenset(range(COUNT // 2, COUNT)), frozenset[int]()
KEYS = range(300)
ON_RIGHT = [key for key in KEYS if group(key) in RIGHT]


class Drive:
    """A driver of several nodes, with a batch open on them."""

    def __init__(self, nodes: LocalNodes, owners: tuple[Groups, ...]) -> None:
        self.handles = nodes.nodes
        self.clients = [connected(nodes, index) for index in range(len(owners))]
        self.owners = owners
        self.base: StateManifest = EMPTY
        self.ticket = Ticket(1, 0)
        self.answers: list[PrepareAnswer] = []
        self.begin()

    def begin(
        self,
        origins: Mapping[int, Mapping[str, Groups]] | None = None,
        budget: int = 0,
        urgent: bool = False,
    ) -> None:
        self.ticket = Ticket(1, self.base.batch_id + 1, self.ticket.attempt + 1)
        for index, (client, groups) in enumerate(zip(self.clients, self.owners, strict=True)):
            where = (origins or {}).get(index, {})
            base = self.base.restricted(groups)
            client.begin(Begin(self.ticket, base, groups, None, where, budget, urgent))

    def move(self, *owners: Groups, budget: int = 0, urgent: bool = False) -> None:
        before, self.owners = self.owners, owners
        origins: dict[int, dict[str, Groups]] = {}
        for index, groups in enumerate(owners):
            for other, had in enumerate(before):
                if other != index and had & groups:
                    origins.setdefault(index, {})[self.handles[other].address] = had & groups
        self.begin(origins, budget, urgent)

    def batch(self, rows: Mapping[int, int], budget: int = 0) -> None:
        self.answers = []
        for client, groups in zip(self.clients, self.owners, strict=True):
            mine = {key: n for key, n in rows.items() if group(key) in groups}
            client.stage(self.ticket, TABLE.name, 0, written(mine))
            self.answers.append(client.prepare(self.ticket))
        for client in self.clients:
            client.commit(self.ticket, None)
        runs = together(answer.runs for answer in self.answers)
        self.base = replace(self.base, batch_id=self.ticket.batch_id, runs=runs)
        self.begin(budget=budget)

    def get(self, node: int, keys: list[int]) -> dict[int, int]:
        return values(self.clients[node].get(self.ticket, TABLE.name, probes(keys)))


@contextmanager
def driving(folder: Path, *owners: Groups, **how: Any) -> Iterator[tuple[LocalNodes, Drive]]:
    log, scratch = str(folder / "log"), folder / "nodes"
    with LocalNodes(len(owners), pipeline=PIPELINE, log=log, scratch=scratch, **how) as nodes:
        drive = Drive(nodes, owners)
        yield nodes, drive
        for client in drive.clients:
            client.close()


@pytest.mark.parametrize("durable", [True, False])
def test_key_groups_come_when_needed_and_in_the_background(tmp_path: Path, durable: bool) -> None:
    with driving(tmp_path, ALL, NOTHING, durable=durable) as (_, drive):
        drive.batch(dict.fromkeys(KEYS, 1))
        drive.move(LEFT, RIGHT)
        assert drive.get(1, ON_RIGHT[:10]) == dict.fromkeys(ON_RIGHT[:10], 1)
        drive.batch(dict.fromkeys(ON_RIGHT[:5], 2))
        arrived = drive.answers[1].arrived
        assert (arrived["remote"], arrived["demand_keys"], arrived["background_keys"]) == (10, 10, 0)
        assert arrived["groups_left"] == len(RIGHT)

        def settled() -> bool:
            drive.batch({}, budget=1 << 20)
            return drive.answers[1].arrived["groups_left"] == 0

        await_that(settled)
        for client in drive.clients:
            client.release(Ticket(1, 1 << 40), ALL)
        with pytest.raises(StaleError):
            drive.clients[0].fetch_keys(TABLE.name, RIGHT, 0, probes(ON_RIGHT))
        assert drive.get(1, ON_RIGHT) == dict.fromkeys(ON_RIGHT, 1) | dict.fromkeys(ON_RIGHT[:5], 2)
        drive.batch({})
        assert drive.answers[1].arrived["local"] == len(ON_RIGHT)


def test_the_background_waits_for_the_end_of_a_batch_unless_the_batch_waits_for_it(tmp_path: Path) -> None:
    with driving(tmp_path, ALL, NOTHING) as (_, drive):
        drive.batch(dict.fromkeys(KEYS, 1))

        def left(node: int) -> int:
            return drive.clients[node].status().groups_left

        time.sleep(0.3)  # What the commit woke has looked by then, and found nothing to do.
        drive.move(LEFT, RIGHT, budget=1 << 20)
        time.sleep(0.3)
        assert left(1) == len(RIGHT)
        drive.batch({}, budget=1 << 20)  # The next one begins at once; parts come all the same.
        await_that(lambda: left(1) < len(RIGHT))
        drive.move(ALL, NOTHING, budget=1 << 20, urgent=True)
        await_that(lambda: left(0) == 0)


def test_an_origin_that_is_killed_or_hangs_is_replaced_by_the_log(tmp_path: Path) -> None:
    with driving(tmp_path, LEFT, RIGHT, NOTHING) as (nodes, drive):
        drive.batch(dict.fromkeys(KEYS, 1))
        drive.move(NOTHING, NOTHING, ALL)
        os.kill(nodes.nodes[0].pid, signal.SIGKILL)
        os.kill(nodes.nodes[1].pid, signal.SIGSTOP)
        assert drive.get(2, list(KEYS)) == dict.fromkeys(KEYS, 1)


def test_an_origin_that_is_killed_takes_along_what_no_log_has(tmp_path: Path) -> None:
    with driving(tmp_path, ALL, NOTHING, durable=False) as (nodes, drive):
        drive.batch(dict.fromkeys(KEYS, 1))
        drive.move(LEFT, RIGHT)
        os.kill(nodes.nodes[0].pid, signal.SIGKILL)
        with pytest.raises(StateError, match=r"8-15 as of batch 0 .* lost"):
            drive.get(1, ON_RIGHT)


def test_nodes_that_wait_for_each_other_do_not_wait_for_ever(tmp_path: Path) -> None:
    """One gets from the other what it gave it before, while others want each node for themselves."""
    with driving(tmp_path, ALL, NOTHING, durable=False) as (_, drive):
        drive.batch(dict.fromkeys(KEYS, 1))
        drive.move(LEFT, RIGHT)
        drive.batch({})
        drive.move(ALL, NOTHING)
        stop = threading.Event()

        def interrupting(client: NodeClient) -> None:
            while not stop.is_set():  # of another batch: it takes the lock, and changes nothing
                with pytest.raises(StaleError):
                    client.prepare(replace(drive.ticket, attempt=drive.ticket.attempt + 1))

        threads = [threading.Thread(target=interrupting, args=(client,)) for client in drive.clients]
        for thread in threads:
            thread.start()
        try:
            for key in ON_RIGHT:
                assert drive.get(0, [key]) == {key: 1}
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_the_load_of_key_groups_is_told(tmp_path: Path) -> None:
    with driving(tmp_path, ALL) as (_, drive):
        drive.batch({})
        assert drive.answers[0].load == {}
        drive.get(0, list(KEYS[:10]))
        drive.batch(dict.fromkeys(KEYS, 1))
        expected = dict.fromkeys(ALL, 0)
        for key in (*KEYS, *KEYS[:10]):
            expected[group(key)] += 1
        assert drive.answers[0].load == {number: count for number, count in expected.items() if count}
        drive.batch({1: 1})
        assert drive.answers[0].load == {group(1): 1}
