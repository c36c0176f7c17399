"""Hosts that a registry tells of, also while that is away."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.state.fleet import providers
from tests.state.gated import Gated
from tests.state.node_kit import PIPELINE, await_that
from tidegate.errors import HostError
from tidegate.security import token_file
from tidegate.security.security import Security
from tidegate.state.fleet import remote
from tidegate.state.fleet.fleet import Fleet
from tidegate.state.fleet.local import environment
from tidegate.state.fleet.remote import RemoteHosts
from tidegate.state.fleet.supervised import SupervisedLauncher
from tidegate.state.node.spec import NodeSpec
from tidegate.state.supervisor.registry import Registration, Registry
from tidegate.storage.place import open_storage

LEASE = 4.0


def registration(address: str, *, leaving: bool = False) -> Registration:
    return Registration(address.rpartition(":")[0], address, leaving, time.time())


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Gated:
    monkeypatch.setattr(remote, "_FRESH", 0.0)
    monkeypatch.setattr(remote, "_PATIENCE", 0.2)
    return Gated()


def hosts(storage: Gated) -> RemoteHosts:
    return RemoteHosts(Registry(storage), security=Security.of_run("nodes", tls=True))


def test_a_registry_that_is_away_is_taken_as_it_last_was(storage: Gated) -> None:
    registry, mine = Registry(storage), hosts(storage)
    registry.put(registration("a:1", leaving=True))
    assert mine.names() == ["a:1"]
    with storage.away(), ThreadPoolExecutor(4) as threads:
        asked = [
            threads.submit(lambda: (mine.names(), mine.leaving(), mine.known("a:1") is not None))
            for _ in range(4)
        ]
        for each in asked:
            assert each.result(30) == (["a:1"], frozenset({"a:1"}), True)
    registry.put(registration("b:1"))
    await_that(lambda: mine.names() == ["a:1", "b:1"])


def test_the_first_answer_of_a_registry_is_waited_for(storage: Gated) -> None:
    Registry(storage).put(registration("a:1"))
    mine = hosts(storage)
    with ThreadPoolExecutor(1) as threads, storage.away():
        names = threads.submit(mine.names)
        assert storage.waits.wait(30)
        assert mine.leaving() == frozenset()
        assert not names.done()
    assert names.result(30) == ["a:1"]


def test_several_supervisors_on_one_machine_are_several_hosts(storage: Gated) -> None:
    registry, mine = Registry(storage), hosts(storage)
    registry.put(registration("a:1"))
    registry.put(registration("a:2", leaving=True))
    assert mine.names() == ["a:1", "a:2"]
    assert mine.leaving() == {"a:2"}
    with pytest.raises(HostError, match="registered at a:3"):
        mine.supervisor("a:3")


def spec(folder: Path, security: Security, lease: float) -> NodeSpec:
    told = environment(security, {})
    return NodeSpec(PIPELINE, str(folder / "log"), "columnar", 1 << 26, True, lease, None, told)


def fleet(folder: Path, storage: Gated) -> Fleet:
    """A node with the shortest lease, by a supervisor that `storage` tells of."""
    security = Security.of_run(PIPELINE, tls=True)
    known = RemoteHosts(Registry(storage), security=token_file.read(folder / "token"))
    return Fleet(
        SupervisedLauncher(spec(folder, security, LEASE), known),
        1,
        pipeline=PIPELINE,
        security=security,
        generation=1,
        timeout=10.0,
        lease=LEASE,
    )


@pytest.mark.chaos
def test_nodes_go_on_while_the_registry_is_away_for_longer_than_their_lease(
    storage: Gated, tmp_path: Path
) -> None:
    with providers.supervisor(tmp_path, "127.0.0.6"):
        (there,) = Registry(open_storage(tmp_path / "registry")).all()
        Registry(storage).put(there)
        with fleet(tmp_path, storage) as nodes, storage.away():
            assert storage.waits.wait(30)
            before = nodes._renewal.rounds if nodes._renewal else 0
            # A lease has four rounds.
            await_that(lambda: nodes._renewal is not None and nodes._renewal.rounds > before + 5)
            assert nodes.dead() == []
            assert [node.host for node in nodes.nodes] == ["127.0.0.6"]


@pytest.mark.chaos
def test_registrations_that_a_killed_supervisor_left_hide_no_other_on_its_machine(
    storage: Gated, tmp_path: Path
) -> None:
    registry = Registry(storage)
    for port in (1, 9):  # By their text, one comes before and one after every port that is free.
        registry.put(registration(f"127.0.0.6:{port}"))
    with providers.supervisor(tmp_path, "127.0.0.6") as running:
        registry.put(registration(running.address))
        with fleet(tmp_path, storage) as nodes:
            assert nodes.dead() == []
            registry.put(registration("127.0.0.6:1", leaving=True))
            assert nodes.leaving(now=True) == frozenset()
            registry.put(registration(running.address, leaving=True))
            await_that(lambda: nodes.leaving(now=True) == {0})
