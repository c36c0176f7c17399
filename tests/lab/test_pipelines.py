"""Pipelines on a cluster of hosts: what goes wrong with these leaves no trace in output and state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.driving import Driver, environment, left_on
from tests.run.chaos_kit import Left, finish, left
from tidegate.lab import Lab

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.lab, pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow]

BATCHES = 25


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all hosts share."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What a run leaves that nobody disturbs, in one process."""
    return finish(tmp_path_factory.mktemp("calm"), BATCHES).left


@pytest.fixture(scope="module")
def lab(shared: Path, calm: Left) -> Iterator[Lab]:
    declared = {
        "lab": {"shared": [str(shared)]},
        "hosts": {"near": {}, "other": {}, "a": {"delay": "5 ms"}, "b": {"delay": "5 ms"}, "depot": {}},
        "spark": {"master": "near", "workers": ["a", "b"], "memory": "512m"},
        "store": {"host": "depot"},
    }
    with Lab(declared) as running:
        yield running


CHAOS: list[dict[str, object]] = [
    {"do": "partition", "host": "a", "from": ["b"], "at": "0 s", "for": "3 s"},
    {"do": "partition", "host": "b", "one_way": "in", "at": "4 s", "for": "3 s"},
    {"do": "kill", "host": "a", "at": "8 s", "for": "2 s"},
]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_cut_links_and_a_dead_host_leave_no_trace(lab: Lab, shared: Path, calm: Left) -> None:
    folder = shared / "struck"
    folder.mkdir()
    checkpoint = folder / "checkpoint"
    settings = {"state.bind": lab["near"].address, "engine.interval": "800 ms"}
    with Driver(lab, "near", folder, BATCHES, checkpoint=str(checkpoint), settings=settings) as driver:
        driver.await_batch(2)
        with lab.chaos(CHAOS) as chaos:
            assert chaos.wait(120)
        assert len(chaos.deeds) == 2 * len(CHAOS)
        assert driver.process.poll() is None, f"it ended before all this went wrong: {driver.said}"
        assert driver.wait() == 0, driver.said
        told = driver.batches()
    # Its nodes are on one host, and its tasks on the others.
    assert [batch["state_wire_remote"] for batch in told] == [batch["state_wire"] for batch in told]
    assert sum(batch["state_wire_remote"] for batch in told)
    assert left(folder, checkpoint) == calm


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transfer", ["peer", "log"])
def test_rescales_while_a_link_is_cut_and_a_host_dies_leave_no_trace(
    lab: Lab, shared: Path, calm: Left, transfer: str
) -> None:
    """Out while an executor is cut off, and in again while one is dead: with state from its old owners, and
    from the log."""
    folder = shared / transfer
    folder.mkdir()
    checkpoint = folder / "checkpoint"
    settings: dict[str, str | int] = {
        "state.bind": lab["near"].address,
        "state.nodes": 1,
        "state.transfer": transfer,
        "engine.interval": "2 s",
    }
    with Driver(lab, "near", folder, BATCHES, checkpoint=str(checkpoint), settings=settings) as driver:
        driver.await_batch(2)
        with lab.partition("a"):
            driver.tidegate("scale", "--nodes", "3", "--parallelism", "3", "--no-wait")
            driver.await_more()
        lab["b"].kill()
        driver.await_switched(1)
        driver.tidegate("scale", "--nodes", "2", "--parallelism", "2", "--no-wait")
        driver.await_more()
        lab.boot("b")
        driver.await_switched(2)
        told = driver.tidegate("history")["rescales"]
        assert driver.wait() == 0, driver.said
    assert [rescale["nodes"] for rescale in told] == [[1, 3], [3, 2]]
    assert all(rescale["first_batch"] is not None for rescale in told)
    assert left(folder, checkpoint) == calm


LINKS: list[dict[str, object]] = [
    {"do": "partition", "host": "a", "from": ["b"], "at": "0 s", "for": "3 s"},
    {"do": "partition", "host": "b", "one_way": "in", "at": "4 s", "for": "3 s"},
]
STORE: list[dict[str, object]] = [
    {"do": "store-slow", "delay": "200 ms", "at": "0 s", "for": "3 s"},
    {"do": "store-errors", "share": 0.3, "at": "2 s", "for": "3 s"},
    {"do": "store-away", "at": "4 s", "for": "3 s"},
]
HOST: dict[str, object] = {"do": "kill", "host": "a", "at": "8 s", "for": "2 s"}
SLOW: list[dict[str, object]] = [
    {"do": "freeze", "host": "a", "at": "0 s", "for": "3 s"},
    {"do": "delay", "host": "b", "delay": "60 ms", "at": "4 s", "for": "4 s"},
    {"do": "disk-full", "host": "b", "at": "9 s", "for": "1 s"},
]
LONG_AWAY: dict[str, object] = {"do": "store-away", "at": "0 s", "for": "15 s"}
"""For longer than the lease of a node."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "chaos",
    [
        pytest.param([*STORE, HOST], id="store-and-host"),
        pytest.param(LINKS, id="links", marks=pytest.mark.soak),
        pytest.param(STORE, id="store", marks=pytest.mark.soak),
        pytest.param([HOST], id="host", marks=pytest.mark.soak),
        pytest.param(SLOW, id="slow", marks=pytest.mark.soak),
        pytest.param([*LINKS, *STORE, HOST], id="all", marks=pytest.mark.soak),
    ],
)
def test_state_on_executors_and_a_checkpoint_in_a_store_stand_it_too(
    lab: Lab, shared: Path, calm: Left, request: pytest.FixtureRequest, chaos: list[dict[str, object]]
) -> None:
    """While it is rescaled; a host that dies takes an executor and state nodes with it."""
    name = request.node.callspec.id
    folder = shared / name
    folder.mkdir()
    checkpoint = f"{lab.store.url}/{name}"
    settings = {"state.provider": "executors", "engine.interval": "800 ms"}
    with Driver(lab, "near", folder, BATCHES, checkpoint=checkpoint, settings=settings) as driver:
        driver.await_batch(2)
        driver.tidegate("scale", "--nodes", "4", "--parallelism", "4", "--no-wait")
        with lab.chaos(chaos) as happening:
            assert happening.wait(120)
        assert len(happening.deeds) == 2 * len(chaos), happening.deeds
        assert driver.process.poll() is None, f"it ended before all this went wrong: {driver.said}"
        assert driver.wait() == 0, driver.said
        # Nothing runs any more: it is read from the store.
        (rescale,) = driver.tidegate("history")["rescales"]
    assert rescale["nodes"][1] == 4
    assert rescale["first_batch"] is not None
    assert left_on(lab, "near", folder, checkpoint) == calm


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_nodes_that_were_started_by_others_outlive_a_store_that_is_away(
    lab: Lab, shared: Path, calm: Left
) -> None:
    folder = shared / "remote"
    folder.mkdir()
    checkpoint, registry, token = f"{lab.store.url}/remote", f"{lab.store.url}/nodes", folder / "token"
    node = [sys.executable, "-m", "tidegate.cli.main", "node"]
    lab["near"].run([*node, "--new-token-file", str(token)], check=True, env=environment(lab))
    settings: dict[str, str | int] = {
        "state.provider": "remote",
        "state.registry": registry,
        "state.token_file": str(token),
        "state.lease": "8 s",
        "engine.interval": "800 ms",
    }
    with ExitStack() as stack:
        for name in ("a", "b"):
            listening = [*node, "--listen", f"{lab[name].address}:7400", "--token-file", str(token)]
            running = lab[name].start([*listening, "--register", registry], env=environment(lab))
            stack.callback(running.wait)
            stack.callback(running.kill)
        driver = stack.enter_context(
            Driver(lab, "near", folder, BATCHES, checkpoint=checkpoint, settings=settings)
        )
        driver.await_batch(2)
        nodes = {node["pid"] for node in driver.tidegate("status")["nodes"]}
        with lab.chaos([LONG_AWAY]) as happening:
            assert happening.wait(120)
        driver.await_more()
        assert {node["pid"] for node in driver.tidegate("status")["nodes"]} == nodes
        with lab.chaos([HOST]) as happening:
            assert happening.wait(120)
        assert driver.wait() == 0, driver.said
    assert left_on(lab, "near", folder, checkpoint) == calm


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_driver_on_another_host_goes_on_where_the_host_of_the_first_one_died(
    lab: Lab, shared: Path, calm: Left
) -> None:
    folder = shared / "moved"
    folder.mkdir()
    checkpoint = f"{lab.store.url}/moved"
    settings = {"state.provider": "executors", "engine.interval": "800 ms"}
    with Driver(lab, "other", folder, BATCHES, checkpoint=checkpoint, settings=settings) as driver:
        driver.await_batch(8)
        lab["other"].kill()
    lab.boot("other")
    with Driver(
        lab, "near", folder, BATCHES, checkpoint=checkpoint, settings=settings, take_over=True
    ) as driver:
        assert driver.wait() == 0, driver.said
    assert left_on(lab, "near", folder, checkpoint) == calm
