"""Supervisors that Spark starts, on a Spark that is one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.state.node_kit import await_that
from tidegate.cluster.executor_hosts import ExecutorHosts
from tidegate.errors import HostError
from tidegate.security.security import Security
from tidegate.state.supervisor.client import SupervisorClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def hosts(spark: SparkSession) -> Iterator[ExecutorHosts]:
    found = ExecutorHosts(
        spark, security=Security.of_run("p", tls=True), lease=60.0, staying=lambda: frozenset()
    )
    yield found
    found.close()


def started(hosts: ExecutorHosts) -> SupervisorClient:
    """In a thread of its own, since jobs change what later jobs of a thread are like."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(hosts.supervisor, hosts.names()[0]).result()


def _pid(client: SupervisorClient) -> int:
    """The process that listens at an address."""
    port = f":{int(client.address.rpartition(':')[2]):04X}"
    tables = (Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    sockets = [line.split() for lines in tables for line in lines]
    (inode,) = {fields[9] for fields in sockets if fields[1].endswith(port) and fields[3] == "0A"}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == f"socket:[{inode}]":
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"nobody listens at {client.address}")


def test_there_is_one_supervisor_on_a_machine_until_it_is_gone(hosts: ExecutorHosts) -> None:
    first = started(hosts)
    assert started(hosts) is first
    os.kill(_pid(first), signal.SIGKILL)
    await_that(lambda: not _answers(first))
    second = started(hosts)
    assert second.address != first.address
    process = Path(f"/proc/{_pid(second)}/stat")
    hosts.close()
    # One that has ended waits for the Python worker that started it.
    await_that(lambda: not process.exists() or process.read_text().rpartition(")")[2].split()[0] == "Z")


def test_one_that_stays_silent_is_forgotten_so_that_another_may_be_started(hosts: ExecutorHosts) -> None:
    client = started(hosts)
    hosts.renew()
    assert hosts.known(client.host) is client
    os.kill(_pid(client), signal.SIGKILL)
    await_that(lambda: not _answers(client))
    hosts.renew()
    assert hosts.known(client.host) is client
    hosts.renew()
    assert hosts.known(client.host) is None


def test_a_machine_without_an_executor_is_told(hosts: ExecutorHosts) -> None:
    with pytest.raises(HostError, match="on nowhere: it has no executor any more"):
        hosts.supervisor("nowhere")


def _answers(client: SupervisorClient) -> bool:
    try:
        client.look()
    except HostError:
        return False
    return True
