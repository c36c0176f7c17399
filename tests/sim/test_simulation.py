"""A run is a function of its seed, and `tidegate sim` tells what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from tidegate.cli.sim import app
from tidegate.errors import StateError, StorageError
from tidegate.sim.disk import SimDisk
from tidegate.sim.driver import Driver
from tidegate.sim.hosts import STORE
from tidegate.sim.nodes import Provider
from tidegate.sim.outcome import simulate
from tidegate.sim.weather import Weather
from tidegate.sim.world import World

FOLDER = Path("/folder")


def disk_with(content: bytes, *, file_synced: bool, name_synced: bool, seed: int) -> SimDisk:
    disk = SimDisk(Random(seed), lambda _: None)
    disk.make_folder(FOLDER)
    with disk.create(FOLDER / "a") as file:
        file.write(content)
        if file_synced:
            file.sync()
    if name_synced:
        disk.sync_folder(FOLDER)
    disk.lose_power()
    return disk


@pytest.mark.parametrize("rescales", [False, True])
def test_the_same_seed_gives_the_same_story(rescales: bool) -> None:
    first, second = (simulate(3, rescales=rescales, story=True) for _ in range(2))
    assert first == second
    assert len(first.story) > 10


def test_the_order_of_sets_does_not_matter() -> None:
    command = [sys.executable, "-m", "tidegate.cli.main", "sim", "protocol", "--seed", "3", "--story"]
    stories = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hashing}, stdout=subprocess.PIPE, check=True
        ).stdout
        for hashing in ("1", "3")
    }
    assert len(stories) == 1


def test_a_story_is_told() -> None:
    answer = CliRunner().invoke(app, ["protocol", "--seed", "1", "--story"])
    assert answer.exit_code == 0
    assert "takes over as generation 1" in answer.stdout
    assert "Replay: tidegate sim protocol --seed 1 --story" in answer.stdout


def test_a_story_without_a_seed_is_refused() -> None:
    assert CliRunner().invoke(app, ["rescale", "--story"]).exit_code == 2


def test_figures_as_json() -> None:
    answer = CliRunner().invoke(app, ["rescale", "--seeds", "2", "--jobs", "1", "--json"])
    figures = json.loads(answer.stdout)
    assert figures["runs"] == 2
    assert figures["failures"] == []
    assert figures["batches"] > 0


def test_a_broken_promise_ends_with_1_and_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.batch.garbage.Garbage.collect", lambda *_: 1 / 0)
    answer = CliRunner().invoke(app, ["protocol", "--seed", "2"])
    assert answer.exit_code == 1
    assert "seed 2: ZeroDivisionError" in answer.stdout


def test_what_was_synced_outlives_a_power_cut() -> None:
    for seed in range(20):
        disk = disk_with(b"content", file_synced=True, name_synced=True, seed=seed)
        assert disk.read(FOLDER / "a") == b"content"


def test_what_was_not_synced_may_be_lost_or_torn() -> None:
    found = {
        disk_with(b"content", file_synced=False, name_synced=True, seed=seed).read(FOLDER / "a")
        for seed in range(50)
    }
    assert b"" in found
    assert any(b"content".startswith(part) and part not in (b"", b"content") for part in found)
    assert any(part.endswith(b"\0") for part in found)


def test_a_name_that_was_not_synced_may_be_lost() -> None:
    there = {
        disk_with(b"content", file_synced=True, name_synced=False, seed=seed).exists(FOLDER / "a")
        for seed in range(20)
    }
    assert there == {True, False}


def test_a_full_disk_takes_nothing() -> None:
    disk = SimDisk(Random(0), lambda _: None)
    disk.make_folder(FOLDER)
    disk.full = True

    def fill() -> None:
        for number in range(20):  # Each may find a last bit of space.
            disk.create(FOLDER / str(number))

    with pytest.raises(OSError, match="no space"):
        fill()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three hosts, on which nothing happens by itself."""
    for seed in range(100):
        (scratch := tmp_path / str(seed)).mkdir()
        world = World(seed, scratch, rescales=False)
        if len(world.hosts) == 3:
            world.weather = Weather(events=0.0)
            return world
    raise AssertionError("no world has three hosts")


def test_what_is_sent_to_the_store_over_a_cut_link_is_not_there_or_comes_late(world: World) -> None:
    store, here = world.store("place"), world.here.name
    world.links.isolate(here, [STORE], sends=True, hears=False)
    for number in range(20):
        with pytest.raises(StorageError, match="does not answer"):
            store.create(f"a{number}", b"content")
    world.events.heal()
    assert store.names() == []
    late = len(world.bucket.late)
    assert 0 < late < 20
    while world.bucket.late:
        world.events.deliver()
    assert len(store.names()) == late


def test_what_the_store_does_is_done_even_if_nobody_hears_of_it(world: World) -> None:
    store, here = world.store("place"), world.here.name
    world.links.isolate(here, [STORE], sends=False, hears=True)
    with pytest.raises(StorageError, match="does not answer"):
        store.create("a", b"content")
    world.events.heal()
    assert store.open("a").to_pybytes() == b"content"
    assert not store.create("a", b"content")


def test_a_node_out_of_reach_is_replaced_lives_on_and_gives_up(world: World) -> None:
    near, far = world.hosts[0], world.hosts[1]
    provider = Provider(world, Driver(world, 1, near), "g1-")
    provider.grow(3)
    (index,) = [number for number, node in enumerate(provider.nodes) if node.host == far.name]
    address = provider.nodes[index].address
    world.links.isolate(far.name, [host.name for host in world.hosts], sends=True, hears=True)
    assert provider.dead() == [index]
    (replaced,) = provider.replace_all([index])
    assert replaced.host != far.name
    left = world.network.listening[address]
    assert not left.dead
    world.events.heal()
    assert world.lease is not None
    world.steps += round(world.lease / 2)
    assert world.connect(address).status().name == left.name
    provider.renew(1)
    world.calm, world.steps = True, world.steps + round(world.lease * 3 / 4)
    assert world.gives_up(left)
    assert not any(world.gives_up(world.network.listening[node.address]) for node in provider.nodes)


def test_nodes_start_where_the_driver_can_reach_a_host(world: World) -> None:
    provider = Provider(world, Driver(world, 1, world.hosts[0]), "g1-")
    names = [host.name for host in world.hosts]
    world.links.isolate(names[0], names[1:], sends=False, hears=True)
    provider.grow(3)
    assert {node.host for node in provider.nodes} == {names[0]}
    world.links.cut.add((names[0], names[0]))
    with pytest.raises(StateError, match="no host can be reached"):
        provider.grow(4)
