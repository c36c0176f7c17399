"""Machines that are out of reach: by what their kernels say."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import pytest

from tests.cluster.kit import await_that
from tests.state.fleet.test_leases import LEASE
from tests.state.node_kit import PIPELINE
from tidegate.security.security import Security
from tidegate.state.fleet import reach
from tidegate.state.fleet.fleet import Fleet
from tidegate.state.fleet.local import LocalLauncher, environment
from tidegate.state.fleet.reach import Reach, answers
from tidegate.state.node.spec import NodeSpec


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Addresses that say nothing; to be added to."""
    silent = set[str]()
    monkeypatch.setattr(reach, "answers", lambda address: address not in silent)
    monkeypatch.setattr(reach, "_EVERY", 0.01)
    return silent


@contextmanager
def watching(*addresses: str) -> Iterator[tuple[Reach, list[str]]]:
    lost: list[str] = []
    watch = Reach(lambda: addresses, lost.append)
    try:
        yield watch, lost
    finally:
        watch.close()


def test_a_kernel_answers_for_a_process_that_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address), "nobody has accepted the connection"
    assert answers(address), "it is refused"


def test_who_says_nothing_for_long_enough_is_lost_once_and_may_come_back(gone: set[str]) -> None:
    with watching("10.0.0.1:1", "10.0.0.2:1") as (watch, lost):
        gone.add("10.0.0.1:1")
        await_that(lambda: watch.out_of("10.0.0.1:9"), "the machine is out of reach at any port")
        assert not watch.out_of("10.0.0.2:1")
        gone.clear()
        await_that(lambda: not watch.out_of("10.0.0.1:1"), "it is back")
        assert lost == ["10.0.0.1"]


def test_a_knock_that_is_lost_by_chance_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    knocks, counting = [0], Lock()

    def mostly(address: str) -> bool:
        with counting:
            knocks[0] += 1
            return knocks[0] % 3 == 0

    monkeypatch.setattr(reach, "answers", mostly)
    monkeypatch.setattr(reach, "_EVERY", 0.001)
    monkeypatch.setattr(reach, "ThreadPoolExecutor", lambda **_: _OneAtATime())
    with watching("10.0.0.1:1") as (_, lost):
        await_that(lambda: knocks[0] > 100, "there were many knocks")
    assert lost == []


class _OneAtATime:
    def __enter__(self) -> _OneAtATime:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: object, *arguments: object) -> None:
        assert callable(call)
        call(*arguments)


class Told(LocalLauncher):
    """Notes which hosts are out of reach."""

    lost_hosts: list[str]

    def lost(self, host: str) -> None:
        self.lost_hosts.append(host)


def test_a_node_whose_machine_is_out_of_reach_is_dead_before_it_is_asked(
    tmp_path: Path, gone: set[str]
) -> None:
    security = Security.of_run(PIPELINE, tls=True)
    told = environment(security, {})
    spec = NodeSpec(PIPELINE, str(tmp_path / "log"), "columnar", 1 << 26, True, LEASE, None, told)
    launcher = Told(spec, scratch=tmp_path / "nodes", generation=1, bind="127.0.0.1")
    launcher.lost_hosts = []
    with Fleet(
        launcher, 1, pipeline=PIPELINE, security=security, generation=1, timeout=60.0, lease=LEASE
    ) as fleet:
        (node,) = fleet.nodes
        assert fleet.dead() == []
        gone.add(node.address)
        await_that(lambda: bool(launcher.lost_hosts), "the launcher was told")
        assert launcher.lost_hosts == ["127.0.0.1"]
        # It would answer, though that is not waited for.
        fleet._members[0].client.status()
        object.__setattr__(fleet._members[0], "client", Mute())
        assert fleet.dead() == [0]


class Mute:
    def status(self) -> None:
        socket.create_server(("127.0.0.1", 0)).accept()

    def close(self) -> None:
        pass
