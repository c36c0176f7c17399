"""`tidegate plan` for a pipeline in memory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.control.kit import Toy
from tidegate.cli.main import app
from tidegate.control.server import ControlServer
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask


@pytest.fixture(scope="module")
def toy() -> Toy:
    return Toy()


@pytest.fixture(scope="module")
def checkpoint(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("a place") / "checkpoint"
    with ControlServer(toy, checkpoint=folder):
        yield folder


def tidegate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_it_shows_moves_and_their_effect_and_changes_nothing(checkpoint: Path, toy: Toy) -> None:
    result = tidegate("plan", checkpoint, "--nodes", 4)
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "nodes 2 -> 4, hybrid\n"
        "\n"
        "from  to  key groups   rows    bytes   load\n"
        "   0   1  4-7         2,000  4.00 MB  25.0%\n"
        "   1   2  8-11        2,000  4.00 MB  25.0%\n"
        "   1   3  12-15       2,000  4.00 MB  25.0%\n"
        "\n"
        "12 key groups (12.0 MB) move; the busiest node's share of state accesses falls from 50.0% to 25.0%\n"
        "No batch waits for state; it follows in the background.\n"
        f"Nothing has changed. To apply it: tidegate scale {shlex.quote(str(checkpoint))} --nodes 4\n"
    )
    assert toy.history() == ()


def test_the_command_that_it_names_asks_for_the_same(checkpoint: Path) -> None:
    words = ("--nodes", "3", "--parallelism", "6", "--strategy", "lazy", "--step", "join")
    last = tidegate("plan", checkpoint, *words).stdout.splitlines()[-1]
    assert shlex.split(last.partition("To apply it: ")[2]) == ["tidegate", "scale", str(checkpoint), *words]


def test_where_no_state_moves_there_is_no_table(checkpoint: Path) -> None:
    lines = tidegate("plan", checkpoint, "--parallelism", 8).stdout.splitlines()
    assert lines[:2] == ["parallelism 4 -> 8, hybrid", "no state moves"]


def test_a_rebalance(checkpoint: Path) -> None:
    lines = tidegate("plan", checkpoint, "--rebalance", "--bytes", "100m").stdout.splitlines()
    assert lines[0] == "rebalance of 2 nodes, hybrid"
    assert lines[-1].endswith("--bytes 104857600")
    assert "1 key group (1.00 MB) moves; the busiest node's share of state accesses rises from" in lines[5]


def test_as_json(checkpoint: Path, toy: Toy) -> None:
    found = json.loads(tidegate("plan", checkpoint, "--nodes", 4, "--json").stdout)
    assert found["moves"][2] == {
        "source": 1,
        "target": 3,
        "groups": "12-15",
        "rows": 2000,
        "bytes": 4_000_000,
        "load": 0.25,
    }
    assert found["busiest"] == list(toy.plan(Ask(nodes=4)).busiest)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "say what to plan"),
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "four"], "--nodes"),
        (["--parallelism", "-1"], "--parallelism"),
        (["--nodes", "4", "--strategy", "fast"], "'fast' is not one of restart, eager, lazy, hybrid"),
        (["--nodes", "4", "--rebalance"], "leave them out"),
        (["--nodes", "4", "--bytes", "1m"], "--bytes is for --rebalance"),
        (["--rebalance", "--bytes", "0"], "'0' is not a size: it must"),
        (["--rebalance", "--bytes", "100x"], "'100x' is not a size"),
        (["--rebalance", "--bytes", "m"], "'m' is not a size"),
    ],
)
def test_wrong_usage_ends_with_2_and_asks_nobody(tmp_path: Path, words: list[str], text: str) -> None:
    result = tidegate("plan", tmp_path, *words)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nodes", "17"], "17 nodes: there are 16 key groups"),
        (["--nodes", "4", "--step", "no"], "there is no keyed step 'no', only count, join"),
    ],
)
def test_what_the_pipeline_refuses_is_an_error(checkpoint: Path, words: list[str], text: str) -> None:
    result = tidegate("plan", checkpoint, *words)
    assert isinstance(result.exception, ControlError)
    assert text in str(result.exception)
