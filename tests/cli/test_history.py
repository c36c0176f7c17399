"""`tidegate history` of a pipeline in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.control.kit import Toy, terminal
from tidegate.cli.main import app
from tidegate.control.server import ControlServer
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask
from tidegate.rescale.records import Records
from tidegate.run.checkpoint import Checkpoint


def tidegate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def toy() -> Toy:
    """A pipeline with three rescales: one over, one that gave way, one under way."""
    toy = Toy()
    toy.apply(Ask(nodes=4, parallelism=8))
    while not toy.history()[-1].over:
        toy.tick()
    toy.apply(Ask(nodes=3))
    toy.apply(Ask(kind="rebalance", strategy="lazy"))
    toy.tick()
    return toy


def test_it_lists_all_of_them(toy: Toy, tmp_path: Path) -> None:
    with ControlServer(toy, checkpoint=tmp_path):
        shown = tidegate("history", tmp_path).stdout
    assert shown == (
        "no  change                            strategy  phase     first batch  settled    moved     gap\n"
        " 1  nodes 2 -> 4, parallelism 4 -> 8  hybrid    settled        820 ms   5.50 s  12.0 MB  1.20 s\n"
        " 2  nodes 4 -> 3                      hybrid    replaced            -        -      0 B       -\n"
        " 3  rebalance of 4 nodes              lazy      moving         820 ms        -      0 B       -\n"
    )


def test_one_in_full_leaves_out_what_is_not_known_yet(toy: Toy, tmp_path: Path) -> None:
    with ControlServer(toy, checkpoint=tmp_path):
        shown = tidegate("history", tmp_path, 3).stdout
    assert shown == (
        "rescale 3: rebalance of 4 nodes, lazy: moving\n"
        "asked at           2026-01-01T12:00:00+00:00\n"
        "first batch after  820 ms (batch 18)\n"
        "moved on demand    0 keys, 0 B\n"
        "in the background  0 keys, 0 B\n"
        "latency before     p50 400 ms, p99 900 ms\n"
    )


def test_as_json(toy: Toy, tmp_path: Path) -> None:
    with ControlServer(toy, checkpoint=tmp_path):
        found = json.loads(tidegate("history", tmp_path, "--json").stdout)
        second = json.loads(tidegate("history", tmp_path, 2, "--json").stdout)
    assert [each["phase"] for each in found["rescales"]] == ["settled", "replaced", "moving"]
    assert found["rescales"][1] == second


def test_a_pipeline_that_was_never_rescaled(tmp_path: Path) -> None:
    with ControlServer(Toy(), checkpoint=tmp_path):
        assert tidegate("history", tmp_path).stdout == "toy has never been rescaled\n"
        assert json.loads(tidegate("history", tmp_path, "--json").stdout) == {"rescales": []}


def test_without_a_driver_they_are_as_on_record(toy: Toy, tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(tmp_path)
    checkpoint.storage.create("pipeline.json", b'{"pipeline": "toy"}')
    assert tidegate("history", tmp_path).stdout == "toy has never been rescaled\n"
    with Records(checkpoint.rescales) as records:
        for rescale in toy.history():
            records.keep(rescale)
    *lines, last = tidegate("history", tmp_path).stdout.splitlines()
    with ControlServer(toy, checkpoint=tmp_path):
        *running, _ = tidegate("history", tmp_path).stdout.splitlines()
    assert lines == running
    assert "failed" in last, "it was under way when its driver ended"
    assert json.loads(tidegate("history", tmp_path, 3, "--json").stdout)["why"].startswith("its driver ended")


def test_one_that_is_not_there(toy: Toy, tmp_path: Path) -> None:
    with ControlServer(toy, checkpoint=tmp_path):
        result = tidegate("history", tmp_path, 7)
    assert isinstance(result.exception, ControlError)
    assert str(result.exception) == "toy has no rescale 7; it has: 1, 2, 3"


def test_on_a_terminal_of_80_columns_no_word_is_broken(toy: Toy, tmp_path: Path) -> None:
    with ControlServer(toy, checkpoint=tmp_path):
        code, text = terminal("history", tmp_path, columns=80)
    assert code == 0
    words = text.split()
    for whole in ("rebalance", "parallelism", "hybrid", "settled", "replaced", "12.0"):
        assert whole in words
