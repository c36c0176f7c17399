"""Supervisors of state nodes: what they start, whom they serve, how they are found and how they leave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.state.fleet import providers
from tests.state.node_kit import await_that
from tidegate.errors import HostError, StateError
from tidegate.security import token_file
from tidegate.security.security import Security
from tidegate.state.codec import FormError, encoded
from tidegate.state.fleet.local import environment
from tidegate.state.node.lease import SHARE
from tidegate.state.node.spec import NodeSpec
from tidegate.state.supervisor import client as supervisor_client
from tidegate.state.supervisor.client import SupervisorClient
from tidegate.state.supervisor.commands import MAX_COMMAND, Start, decode, encode
from tidegate.state.supervisor.registry import Registration, Registry
from tidegate.state.supervisor.supervisor import Supervisor
from tidegate.storage.memory import Memory
from tidegate.storage.place import open_storage
from tidegate.units import seconds

NAME = "g1-node-0-12345678"


def spec(folder: Path, **more: str) -> NodeSpec:
    told = environment(Security.of_run("sensors", tls=True), {})
    return NodeSpec("sensors", str(folder / "log"), "columnar", 1 << 20, True, 60.0, None, {**told, **more})


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, providers.Supervisor]]:
    folder = tmp_path_factory.mktemp("machine")
    with providers.supervisor(folder, "127.0.0.4") as running:
        yield folder, running


def client(folder: Path, running: providers.Supervisor, **other: Security) -> SupervisorClient:
    security = other.get("security") or token_file.read(folder / "token")
    return SupervisorClient(running.address, "127.0.0.4", security=security)


def test_a_node_is_started_and_ended(machine: tuple[Path, providers.Supervisor], tmp_path: Path) -> None:
    mine = client(*machine)
    started = mine.start(NAME, spec(tmp_path))
    assert started.address.startswith("127.0.0.4:")
    assert mine.look().nodes == (NAME,)
    os.kill(started.pid, signal.SIGSTOP)
    mine.end(NAME, 0.1)
    assert mine.look().nodes == ()
    assert not Path(f"/proc/{started.pid}").exists()
    mine.end(NAME, 0.1)


def test_a_node_that_ends_by_itself_is_forgotten(
    machine: tuple[Path, providers.Supervisor], tmp_path: Path
) -> None:
    mine = client(*machine)
    started = mine.start(NAME, spec(tmp_path))
    os.kill(started.pid, signal.SIGKILL)
    await_that(lambda: mine.look().nodes == ())
    assert not [path for path in machine[0].rglob("*") if path.name == NAME]


def test_a_node_that_does_not_start_tells_why(
    machine: tuple[Path, providers.Supervisor], tmp_path: Path
) -> None:
    wrong = NodeSpec("sensors", str(tmp_path), "none-such", 1, True, None, None, spec(tmp_path).environment)
    with pytest.raises(StateError, match=r"did not start .*none-such"):
        client(*machine).start(NAME, wrong)


def test_one_that_falls_silent_while_a_node_starts_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_client, "_ANSWER", 0.5)
    monkeypatch.setattr(supervisor_client, "_PAUSE", 0.1)
    with providers.supervisor(tmp_path, "127.0.0.5") as running:
        mine = client(tmp_path, running)
        await_that(lambda: mine.look().nodes == ())
        running.process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(HostError, match="does not answer"):
            mine.start(NAME, spec(tmp_path))
        assert time.monotonic() - begun < 60


def test_a_supervisor_that_is_silent_leaves_the_others_in_time_for_the_shortest_lease() -> None:
    shortest = seconds(providers.LEASE)
    assert shortest / SHARE + supervisor_client._ANSWER < shortest


def test_a_stranger_is_refused(machine: tuple[Path, providers.Supervisor], tmp_path: Path) -> None:
    own = token_file.read(machine[0] / "token")
    with pytest.raises(StateError, match="refuses the token"):
        client(*machine, security=Security("another", own.tls)).look()
    stranger = Security.of_run("nodes", tls=True)
    with pytest.raises(HostError, match="does not answer"):
        client(*machine, security=Security(own.token, stranger.tls)).start(NAME, spec(tmp_path))
    assert client(*machine).look().nodes == ()


def test_a_supervisor_of_several_drivers_does_not_end_for_one(
    machine: tuple[Path, providers.Supervisor],
) -> None:
    with pytest.raises(StateError, match="serves several drivers"):
        client(*machine).stop()


def test_it_leaves_when_its_nodes_have_moved_away(tmp_path: Path) -> None:
    with providers.supervisor(tmp_path, "127.0.0.5") as running:
        registry = Registry(open_storage(tmp_path / "registry"))
        mine = SupervisorClient(running.address, "here", security=token_file.read(tmp_path / "token"))
        assert [(each.address, each.leaving) for each in registry.all()] == [(running.address, False)]
        mine.start(NAME, spec(tmp_path))
        running.process.terminate()
        await_that(lambda: [each.leaving for each in registry.all()] == [True])
        assert mine.look().leaving
        with pytest.raises(StateError, match="is leaving"):
            mine.start("g1-node-1-12345678", spec(tmp_path))
        mine.end(NAME, 1.0)
        assert running.process.wait(60) == 0
        assert registry.all() == []


def test_one_without_a_driver_gives_up(tmp_path: Path) -> None:
    now = 0.0
    mine = Supervisor(host="127.0.0.1", scratch=tmp_path / "nodes", lease=30, clock=lambda: now)
    now = 20
    mine.handle(decode("look", b"{}"))
    assert mine.lease_left == 30
    now = 50
    assert mine.lease_left == 0
    with pytest.raises(StateError, match="given up"):
        mine.handle(decode("look", b"{}"))


@pytest.mark.parametrize(
    ("kind", "raw", "said"),
    [
        ("none", b"{}", "unknown command"),
        ("look", b"[", "not JSON"),
        ("look", b"[]", "a JSON object"),
        ("start", b"{}", "fields are missing"),
        ("end", b'{"name": "../x", "milliseconds": 1}', "like 'g1-node-0-12345678'"),
        ("look", b" " * (MAX_COMMAND + 1), "at most"),
    ],
)
def test_what_is_no_command_is_refused(kind: str, raw: bytes, said: str) -> None:
    with pytest.raises(StateError, match=said):
        decode(kind, raw)


def test_a_node_gets_no_variable_that_is_not_for_nodes(tmp_path: Path) -> None:
    for name in ("LD_PRELOAD", "PYTHONPATH"):
        kind, raw = encode(Start(NAME, spec(tmp_path, **{name: "x"})))
        with pytest.raises(FormError, match=name):
            decode(kind, raw)
    kind, raw = encode(Start(NAME, spec(tmp_path, AWS_ENDPOINT_URL="http://store")))
    assert decode(kind, raw) == Start(NAME, spec_of(raw))


def spec_of(raw: bytes) -> NodeSpec:
    import json

    from tidegate.state.codec import decoded

    return decoded(NodeSpec, json.loads(raw)["spec"])


def test_the_registry_tells_who_was_heard_of_lately() -> None:
    storage = Memory()
    registry = Registry(storage)
    here = Registration("a", "a:1", False, time.time())
    registry.put(here)
    registry.put(Registration("b", "[::1]:2", True, time.time() - 10_000))
    storage.write("x.supervisor", [b"{"])
    storage.write("notes", [b""])
    assert registry.all() == [here]
    registry.remove("a:1")
    assert registry.all() == []


def test_a_spec_keeps_its_secrets_to_itself(tmp_path: Path) -> None:
    made = spec(tmp_path)
    assert "TIDEGATE" not in repr(made)
    assert not any(secret in " ".join(made.arguments()) for secret in made.environment.values())
    assert encoded(made)["lease"] == 60.0
