"""`tidegate status` of a pipeline in memory."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from typer.testing import CliRunner, Result

from tests.control.kit import Toy, terminal
from tidegate.cli.main import app
from tidegate.control.client import ControlClient
from tidegate.control.server import ControlServer
from tidegate.rescale.model import Ask


def tidegate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_it_says_what_the_pipeline_is_at(tmp_path: Path) -> None:
    with ControlServer(Toy(name="counts"), checkpoint=tmp_path):
        result = tidegate("status", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "counts is running\n"
        "batch        17\n"
        "processing   43.2 k/s\n"
        "batch time   640 ms of 1 s\n"
        "latency p50  820 ms\n"
        "lag          1,250 rows\n"
        "parallelism  4\n"
        "keyed steps  count, join\n"
        "route        version 1\n"
        "\n"
        "node  name    pid  key groups    bytes   load\n"
        "   0  node-0  100  0-7         8.00 MB  50.0%\n"
        "   1  node-1  101  8-15        8.00 MB  50.0%\n"
    )


def test_it_says_how_far_a_rescale_is(tmp_path: Path) -> None:
    toy = Toy()
    toy.apply(Ask(nodes=4))
    with ControlServer(toy, checkpoint=tmp_path):
        shown: list[str] = []
        for _ in range(3):
            shown.append(
                tidegate("status", tmp_path).stdout.partition("rescale 1")[2].splitlines()[0].strip()
            )
            toy.tick()
        toy.fail("a node did not come up")
        failed = tidegate("status", tmp_path).stdout
    assert shown == [
        "nodes 2 -> 4, hybrid: starting",
        "nodes 2 -> 4, hybrid: moving, 0 of 12 key groups, 0 B",
        "nodes 2 -> 4, hybrid: moving, 3 of 12 key groups, 3.00 MB",
    ]
    assert "nodes 2 -> 4, hybrid: failed: a node did not come up\n" in failed


def test_as_json(tmp_path: Path) -> None:
    with ControlServer(Toy(), checkpoint=tmp_path):
        found = json.loads(tidegate("status", tmp_path, "--json").stdout)
        told = asdict(ControlClient.find(tmp_path).status())
    assert found == json.loads(json.dumps(told))


def test_a_terminal_that_is_narrow_folds_the_key_groups_only(tmp_path: Path) -> None:
    with ControlServer(Toy(nodes=1), checkpoint=tmp_path):
        code, text = terminal("status", tmp_path, columns=44)
    assert code == 0
    assert "node-0" in text
    assert "16.0 MB" in text


def test_where_nothing_runs_it_says_so_and_ends_with_1(tmp_path: Path) -> None:
    code, text = terminal("status", tmp_path, columns=200)
    assert code == 1
    assert "Error: no pipeline with a control API runs on" in text
