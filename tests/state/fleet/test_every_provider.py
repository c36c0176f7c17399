"""What nodes do is the same wherever they run: real processes, by every provider."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.state.fleet import providers
from tests.state.node_kit import TABLE, Driver, await_that, connected, probes
from tidegate.errors import NodeError, StateError
from tidegate.state.fleet.fleet import Fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.chaos]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two with a supervisor each; its folder."""
    folder = tmp_path_factory.mktemp("machines")
    with ExitStack() as stack:
        for host in ("127.0.0.2", "127.0.0.3"):
            stack.enter_context(providers.supervisor(folder, host))
        yield folder


@pytest.fixture(params=providers.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def nodes(kind: str, machines: Path, spark: SparkSession, tmp_path: Path) -> Iterator[Fleet]:
    with providers.opened(kind, machines, spark, tmp_path) as running:
        yield running


def test_nodes_come_and_go(nodes: Fleet, kind: str) -> None:
    first = nodes.nodes
    assert nodes.dead() == []
    assert [node.name.rpartition("-")[0] for node in first] == ["g1-node-0", "g1-node-1"]
    assert len({node.host for node in first}) == (2 if kind == "remote" else 1)
    nodes.grow(3, gently=True)
    assert nodes.nodes[:2] == first
    assert nodes.dead() == []
    nodes.shrink(1).join()
    assert nodes.nodes == first[:1]
    assert gone(first[1].pid)
    assert not gone(first[0].pid)
    nodes.close()
    assert gone(first[0].pid)
    nodes.grow(1)
    assert nodes.dead() == []


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_is_killed_or_frozen_is_replaced_and_its_state_is_there_again(
    nodes: Fleet, blow: signal.Signals
) -> None:
    driver = Driver(connected(nodes, 1), generation=1)
    driver.batch({1: 10})
    other, old = nodes.nodes
    os.kill(old.pid, blow)
    await_that(lambda: nodes.dead() == [1])
    new = nodes.replace(1)
    assert nodes.nodes == (other, new)
    assert new.name != old.name
    await_that(lambda: gone(old.pid))
    driver.node = connected(nodes, 1)
    ticket = driver.begin()
    assert driver.node.get(ticket, TABLE.name, probes([1]))["n"].to_pylist() == [10]


def test_nodes_outlive_their_lease_as_long_as_their_driver_lives(nodes: Fleet, kind: str) -> None:
    if kind == "local":
        pytest.skip("ends with its driver, without a lease")
    await_that(lambda: nodes._renewal is not None and nodes._renewal.rounds > 5, 60)
    assert nodes.dead() == []


def test_a_killed_driver_leaves_nothing(kind: str, machines: Path, tmp_path: Path) -> None:
    arguments = [kind, str(machines), str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.state.fleet.providers", *arguments],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as driver:
        assert driver.stdout is not None
        told = json.loads(driver.stdout.readline())
        names, pids = zip(*told, strict=True)
        parents = {_parent(pid) for pid in pids}
        assert not any(map(gone, pids))
        driver.kill()
    await_that(lambda: all(map(gone, pids)), 60)
    if kind == "executors":
        await_that(lambda: all(map(gone, parents)), 60)
    left = {path.name for place in (machines, tmp_path) for path in place.rglob("*") if path.is_dir()}
    assert not left & {*names}


def test_a_log_that_a_node_does_not_see_is_told(
    kind: str, machines: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """As on a machine that has another folder at the same path."""
    if kind == "local":
        pytest.skip("there is one machine, with one folder")
    with providers.opened(kind, machines, spark, tmp_path, 0) as nodes:
        (tmp_path / "log").rename(tmp_path / "elsewhere")
        with pytest.raises(StateError, match=r"Set state.log to an object store"):
            nodes.grow(1)
        assert nodes.nodes == ()


def test_a_frozen_driver_finds_its_nodes_gone_and_has_new_ones(nodes: Fleet, kind: str) -> None:
    if kind == "local":
        pytest.skip("ends with its driver, without a lease")
    for renewal in (nodes._renewal, nodes._watch):
        assert renewal is not None
        renewal.close()  # As if it stood still.
    old = nodes.nodes
    await_that(lambda: all(gone(node.pid) for node in old), 60)
    with pytest.raises(NodeError):
        connected(nodes).status()
    assert nodes.dead() == [0, 1]
    nodes.replace_all([0, 1])
    assert nodes.dead() == []


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
