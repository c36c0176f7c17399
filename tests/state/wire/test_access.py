"""Who gets to a node at an address, and who does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from tests.state.node_kit import PIPELINE, Driver, connected, one_node
from tidegate.errors import NodeError, StateError
from tidegate.security.authority import Authority
from tidegate.security.credentials import Credentials, Role
from tidegate.security.security import Security
from tidegate.state.fleet.local import LocalNodes

MOST = 32 << 20
"""Bytes that a node may take on for strangers."""
BIG = 300 << 20
impatient = flight.FlightCallOptions(timeout=10)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.of_run(PIPELINE)


@pytest.fixture(scope="module")
def security(authority: Authority) -> Security:
    return Security("secret", authority.issue("driver"), authority=authority)


@pytest.fixture(scope="module")
def nodes(security: Security, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    place = tmp_path_factory.mktemp("node")
    with one_node(place, bind="127.0.0.2", security=security, timeout=10.0) as (nodes, _):
        yield nodes


def named(name: str, authority: Authority) -> Credentials:
    """Of a party of another run with the same authority."""
    other = Authority(name)
    other._key, other._certificate = authority._key, authority._certificate
    return replace(other.issue("task"), authority=authority.certificate)


def over(authority: Authority) -> Credentials:
    """Signed by the right authority, and over since an hour ago."""
    other = Authority(authority.name, valid=timedelta(hours=-1))
    other._key = authority._key
    return replace(other.issue("task"), authority=authority.certificate)


@pytest.mark.parametrize("role", ["driver", "node", "task"])
def test_parties_of_the_run_are_served(nodes: LocalNodes, security: Security, role: Role) -> None:
    assert connected(nodes, security=security.party(role)).status().name == nodes.nodes[0].name


def test_a_certificate_for_servers_alone_is_refused(nodes: LocalNodes, security: Security) -> None:
    with pytest.raises(NodeError):
        connected(nodes, security=security.party("control"), timeout=5.0).status()


def test_another_authority_is_refused_by_both_sides(nodes: LocalNodes, security: Security) -> None:
    stranger = Authority(security.tls.name if security.tls else "").issue("task")
    with pytest.raises(NodeError):  # The client does not believe the node.
        connected(nodes, security=Security("secret", stranger), timeout=5.0).status()
    assert security.tls is not None
    mixed = replace(stranger, authority=security.tls.authority)
    with pytest.raises(NodeError):  # The node does not believe the client.
        connected(nodes, security=Security("secret", mixed), timeout=5.0).status()


def test_a_certificate_that_is_over_is_refused(nodes: LocalNodes, authority: Authority) -> None:
    with pytest.raises(NodeError):
        connected(nodes, security=Security("secret", over(authority)), timeout=5.0).status()


def test_another_name_is_refused_by_both_sides(nodes: LocalNodes, authority: Authority) -> None:
    other = named("other.tidegate", authority)
    with pytest.raises(NodeError):  # The client wants a node of its own run.
        connected(nodes, security=Security("secret", other), timeout=5.0).status()
    with pytest.raises(StateError, match="token"):  # The node wants clients of its own run.
        connected(nodes, security=Security("secret", replace(other, name=authority.name))).status()


def test_a_node_whose_certificate_is_not_for_servers_is_refused(
    authority: Authority, security: Security, tmp_path: Path
) -> None:
    class Tasks(Security):
        """Gives everybody the certificate of a task."""

        def party(self, role: Role, hosts: Any = ()) -> Security:
            return security.party("task")

    posing = Tasks("secret", security.tls)
    with one_node(tmp_path, bind="127.0.0.2", security=posing, timeout=5.0) as (nodes, client):
        assert nodes.nodes
        with pytest.raises(NodeError):
            client.status()


def test_the_token_is_wanted_as_well(nodes: LocalNodes, security: Security) -> None:
    with pytest.raises(StateError, match="refuses the token"):
        connected(nodes, security=replace(security, token="wrong")).status()


def test_strangers_cannot_fill_the_memory_of_a_node(
    nodes: LocalNodes, security: Security, authority: Authority
) -> None:
    client = connected(nodes)
    assert Driver(client).batch({1: 1}).batch_id == 0
    address, pid = nodes.nodes[0].address, nodes.nodes[0].pid
    before = _peak(pid)
    stranger = Authority.of_run(PIPELINE).issue("task")
    shown = {"cert_chain": stranger.certificate, "private_key": stranger.key}
    late = {"cert_chain": over(authority).certificate, "private_key": over(authority).key}
    # One that does not verify the node shows no certificate.
    believing = {"tls_root_certs": authority.certificate, "override_hostname": authority.name}
    options: dict[str, Any]
    for scheme, options in (
        ("grpc", {}),
        ("grpc+tls", {"disable_server_verification": True}),
        ("grpc+tls", {**believing, **shown}),
        ("grpc+tls", {**believing, **late}),
    ):
        outside = flight.FlightClient(f"{scheme}://{address}", **options)
        with pytest.raises((flight.FlightUnavailableError, flight.FlightTimedOutError)):
            list(outside.do_action(flight.Action("status", bytes(BIG)), impatient))
    assert _peak(pid) < before + MOST
    assert client.status().name == nodes.nodes[0].name


def _peak(pid: int) -> int:
    """The most memory, in bytes, that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10
