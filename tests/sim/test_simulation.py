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
from tidegate.sim.disk import SimDisk
from tidegate.sim.outcome import simulate

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
