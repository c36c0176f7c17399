"""Nodes on this machine: found dead, replaced, ended; and the connections to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.state.node_kit import (
    ALL,
    PIPELINE,
    TABLE,
    Driver,
    await_that,
    connected,
    one_node,
    probes,
    written,
)
from tidegate.batch.ticket import Ticket
from tidegate.errors import NodeError, StaleError, StateError
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.wire.client import client_for
from tidegate.testing import faults


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    """Nodes that tests leave as they are, or replace."""
    tmp_path = tmp_path_factory.mktemp("nodes")
    with LocalNodes(
        2, pipeline=PIPELINE, log=str(tmp_path / "log"), scratch=tmp_path / "nodes", timeout=5.0
    ) as running:
        yield running


def gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_live_nodes_are_not_dead(nodes: LocalNodes) -> None:
    assert nodes.dead() == []
    assert len({node.name for node in nodes.nodes}) == 2


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_node_is_found_and_replaced(nodes: LocalNodes, blow: signal.Signals) -> None:
    driver = Driver(connected(nodes, 1))
    driver.batch({1: 10})
    other, old = nodes.nodes
    os.kill(old.pid, blow)
    await_that(lambda: nodes.dead() == [1])
    new = nodes.replace(1)
    assert gone(old.pid)
    assert new == nodes.nodes[1]
    assert new.name != old.name
    assert nodes.nodes[0] == other
    assert nodes.dead() == []
    driver.node = connected(nodes, 1)
    ticket = driver.begin()
    assert driver.node.get(ticket, TABLE.name, probes([1]))["n"].to_pylist() == [10]


def test_nodes_listen_where_they_are_told_to(tmp_path: Path) -> None:
    with LocalNodes(
        1, pipeline=PIPELINE, log=str(tmp_path / "log"), scratch=tmp_path / "nodes", bind="127.0.0.2"
    ) as local:
        assert local.nodes[0].address.startswith("127.0.0.2:")
        assert local.dead() == []


def test_several_lost_nodes_are_replaced_together(nodes: LocalNodes) -> None:
    old = nodes.nodes
    for node in old:
        os.kill(node.pid, signal.SIGKILL)
    await_that(lambda: nodes.dead() == [0, 1])
    assert nodes.replace_all([1, 0]) == [nodes.nodes[1], nodes.nodes[0]]
    assert nodes.dead() == []
    assert not {node.name for node in old} & {node.name for node in nodes.nodes}


def test_the_other_nodes_are_replaced_when_one_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalNodes(2, pipeline=PIPELINE, log=str(tmp_path / "log"), scratch=tmp_path / "nodes") as nodes:
        start = nodes._start

        def fail(index: int, host: str) -> Any:
            if index == 0:
                raise StateError("no room")
            return start(index, host)

        monkeypatch.setattr(nodes, "_start", fail)
        with pytest.raises(StateError, match="no room"):
            nodes.replace_all([0, 1])
        assert nodes.dead() == [0]


@pytest.mark.parametrize("change", [lambda nodes: nodes.replace(0), lambda nodes: nodes.grow(2)])
def test_a_node_that_starts_while_all_are_ended_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[LocalNodes], object]
) -> None:
    with LocalNodes(1, pipeline=PIPELINE, log=str(tmp_path / "log"), scratch=tmp_path / "nodes") as nodes:
        start, started = nodes._start, list[int]()

        def closing(index: int, host: str, **named: bool) -> Any:
            found = start(index, host, **named)
            started.append(found.handle.pid)
            nodes.close()
            return found

        monkeypatch.setattr(nodes, "_start", closing)
        with pytest.raises(StateError, match="ended in the meantime"):
            change(nodes)
        assert nodes.nodes == ()
        assert all(map(gone, started))


def test_what_nodes_of_earlier_generations_left_is_removed_but_for_the_newest_logs(tmp_path: Path) -> None:
    scratch = tmp_path / "nodes"
    for generation in range(1, 15):
        (scratch / f"g{generation}-node-0-ab" / "rocksdb").mkdir(parents=True)
        (scratch / f"g{generation}-node-0-ab.log").write_text("words")
    (scratch / "other").mkdir()
    LocalNodes(0, pipeline=PIPELINE, log=str(tmp_path / "log"), scratch=scratch, generation=13).close()
    left = {path.name for path in scratch.iterdir()}
    later = {f"g{number}-node-0-ab{end}" for number in (13, 14) for end in ("", ".log")}
    assert left == {"other", *later, *(f"g{number}-node-0-ab.log" for number in range(3, 13))}


def test_a_node_that_is_killed_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def deadly(*arguments: Any, **named: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **named))
        if len(started) == 1:
            started[0].kill()
        return started[-1]

    monkeypatch.setattr("tidegate.state.fleet.child.subprocess.Popen", deadly)
    with LocalNodes(1, pipeline=PIPELINE, log=str(tmp_path / "log"), scratch=tmp_path / "nodes") as nodes:
        assert [node.pid for node in nodes.nodes] == [started[1].pid]
        assert nodes.dead() == []


def test_a_call_to_a_frozen_node_ends_with_the_time_out(nodes: LocalNodes) -> None:
    driver = Driver(connected(nodes))
    ticket = driver.begin()
    driver.node = connected(nodes, timeout=0.3)
    os.kill(nodes.nodes[0].pid, signal.SIGSTOP)
    calls: list[Callable[[], object]] = [
        driver.begin,
        lambda: driver.node.get(ticket, TABLE.name, probes([1])),
        lambda: driver.node.scan(ticket, TABLE.name, ALL),
        lambda: driver.node.stage(ticket, TABLE.name, 0, written({1: 1})),
    ]
    for call in calls:
        with pytest.raises(NodeError, match="in time") as caught:
            call()
        assert caught.value.node == nodes.nodes[0].address
    os.kill(nodes.nodes[0].pid, signal.SIGCONT)


def test_a_node_that_hangs_in_a_request_counts_as_dead(tmp_path: Path) -> None:
    with (
        faults.planned(tmp_path / "faults", [faults.Fault("node.prepare", "hang")]),
        one_node(tmp_path, timeout=3.0) as (nodes, node),
    ):
        driver = Driver(node)
        ticket = driver.begin()
        assert nodes.dead() == []
        with pytest.raises(NodeError):
            node.prepare(ticket)
        assert nodes.dead() == [0]
        nodes.replace(0)
        driver.node = connected(nodes)
        driver.batch({1: 1})


def test_closing_ends_all_nodes_even_a_frozen_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.state.fleet.fleet._END", 0.5)
    nodes = LocalNodes(2, pipeline=PIPELINE, log=str(tmp_path / "log"), scratch=tmp_path / "nodes")
    handles = nodes.nodes
    os.kill(handles[1].pid, signal.SIGSTOP)
    nodes.close()
    nodes.close()
    assert [gone(node.pid) for node in handles] == [True, True]
    assert sorted(path.suffix for path in (tmp_path / "nodes").iterdir()) == [".log", ".log"]


def test_nodes_end_with_their_driver_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from tidegate.state.fleet.local import LocalNodes\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "nodes = LocalNodes(1, pipeline='p', log=str(place / 'log'), scratch=place / 'nodes')\n"
        "print(nodes.nodes[0].pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert not gone(pid)
        driver.kill()
        await_that(lambda: gone(pid))


def test_a_node_that_does_not_start_tells_why(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"node-\d-\w+ did not start .*no-such-backend"):
        LocalNodes(
            2,
            pipeline=PIPELINE,
            log=str(tmp_path / "log"),
            scratch=tmp_path / "nodes",
            backend="no-such-backend",
        )


def test_every_run_has_a_token_of_its_own(nodes: LocalNodes, tmp_path: Path) -> None:
    with one_node(tmp_path / "other") as (other, _):
        assert nodes.security.token != other.security.token
        with pytest.raises(StateError, match="refuses the token"):
            connected(nodes, security=other.security).status()


def test_connections_are_kept_until_they_break(nodes: LocalNodes) -> None:
    known: dict[str, Any] = {"security": nodes.security, "pipeline": PIPELINE}
    address = nodes.nodes[0].address
    first = client_for(address, timeout=20.0, **known)
    assert client_for(address, timeout=20.0, **known) is first
    assert client_for(nodes.nodes[1].address, timeout=20.0, **known) is not first
    os.kill(nodes.nodes[0].pid, signal.SIGKILL)
    with pytest.raises(NodeError):
        first.status()
    assert client_for(address, timeout=20.0, **known) is not first
    nodes.replace(0)


def test_an_error_of_the_node_does_not_cost_the_connection(nodes: LocalNodes) -> None:
    known: dict[str, Any] = {"security": nodes.security, "pipeline": PIPELINE, "timeout": 20.0}
    client = client_for(nodes.nodes[0].address, **known)
    with pytest.raises(StaleError):
        client.scan(Ticket(1, 0), "no such table", frozenset())
    assert client_for(nodes.nodes[0].address, **known) is client


def test_a_forked_process_does_not_use_the_connections_of_its_parent(nodes: LocalNodes) -> None:
    """In a process of its own: pytest's threads and a fork do not go together."""
    code = (
        "import os, sys\n"
        "from tidegate.security.security import Security\n"
        "from tidegate.state.wire.client import client_for\n"
        "how = dict(security=Security(sys.argv[2]), pipeline=sys.argv[3], timeout=5.0)\n"
        "mine = client_for(sys.argv[1], **how)\n"
        "mine.status()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(7 if client_for(sys.argv[1], **how) is not mine else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert client_for(sys.argv[1], **how) is mine\n"
        "mine.status()\n"
    )
    arguments = [nodes.nodes[0].address, nodes.security.token, PIPELINE]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
