"""`tidegate scale` and `rebalance` of a pipeline in memory."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.control.kit import Toy, await_that, terminal, ticking
from tidegate.cli.main import app
from tidegate.control.server import ControlServer
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask

PLAN = "nodes 2 -> 4, hybrid: 12 key groups (12.0 MB) move, busiest node 50.0% -> 25.0%\n"
FIGURES = (
    "asked at           2026-01-01T12:00:00+00:00\n"
    "first batch after  820 ms (batch 18)\n"
    "settled after      5.50 s\n"
    "moved on demand    1,000 keys, 2.00 MB\n"
    "in the background  5,000 keys, 10.0 MB\n"
    "latency before     p50 400 ms, p99 900 ms\n"
    "latency during     p50 450 ms, p99 1.30 s\n"
    "latency after      p50 300 ms, p99 800 ms\n"
    "longest gap        1.20 s between outputs, against 1 s before\n"
)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def checkpoint(toy: Toy, tmp_path: Path) -> Iterator[Path]:
    with ControlServer(toy, checkpoint=tmp_path):
        yield tmp_path


def tidegate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_plan_phases_and_figures(checkpoint: Path, toy: Toy) -> None:
    with ticking(toy, 0.3):
        result = tidegate("scale", checkpoint, "--nodes", 4)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{PLAN}rescale 1: nodes 2 -> 4, hybrid: settled\n{FIGURES}"
    lines = result.stderr.splitlines()
    assert lines[0] == "rescale 1: starting"
    assert lines[-1] == "rescale 1: settled after 5.50 s"
    assert any(line.startswith("rescale 1: moving, ") for line in lines)
    assert len(toy.status().nodes) == 4


def test_all_options_are_passed_on(checkpoint: Path, toy: Toy) -> None:
    words = ("--nodes", 4, "--parallelism", 8, "--strategy", "eager", "--step", "join", "--no-wait")
    assert tidegate("scale", checkpoint, *words).exit_code == 0
    assert toy.history()[0].ask == Ask(nodes=4, parallelism=8, strategy="eager", step="join")


def test_who_does_not_wait_is_told_the_number(checkpoint: Path, toy: Toy) -> None:
    result = tidegate("scale", checkpoint, "--nodes", 4, "--no-wait")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{PLAN}rescale 1 is under way\n"
    assert toy.history()[0].phase == "starting"


def test_as_json_there_is_one_object(checkpoint: Path, toy: Toy) -> None:
    with ticking(toy):
        found = json.loads(tidegate("scale", checkpoint, "--nodes", 4, "--json").stdout)
    assert (found["number"], found["phase"]) == (1, "settled")
    assert found["background"] == {"keys": 5000, "bytes": 10_000_000}
    at_once = json.loads(tidegate("scale", checkpoint, "--nodes", 2, "--json", "--no-wait").stdout)
    assert (at_once["number"], at_once["phase"]) == (2, "starting")


def test_a_rebalance(checkpoint: Path, toy: Toy) -> None:
    with ticking(toy):
        result = tidegate("rebalance", checkpoint, "--bytes", "2g", "--strategy", "lazy", "--step", "count")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("rebalance of 2 nodes, lazy: 1 key group (1.00 MB) moves, busiest node ")
    assert "rescale 1: rebalance of 2 nodes, lazy: settled\n" in result.stdout
    assert toy.history()[0].ask == Ask(kind="rebalance", bytes=2 * 1024**3, strategy="lazy", step="count")


def under_way(toy: Toy) -> None:
    await_that(lambda: bool(toy.history()))


def test_one_that_fails_says_why_and_ends_with_1(checkpoint: Path, toy: Toy) -> None:
    def fail() -> None:
        under_way(toy)
        toy.fail("node-3 did not come up")

    failing = threading.Thread(target=fail)
    failing.start()
    result = tidegate("scale", checkpoint, "--nodes", 4)
    failing.join()
    assert result.exit_code == 1
    assert "rescale 1: nodes 2 -> 4, hybrid: failed: node-3 did not come up\n" in result.stdout


def test_one_that_gives_way_to_another_ends_with_1(checkpoint: Path, toy: Toy) -> None:
    def replace() -> None:
        under_way(toy)
        toy.apply(Ask(nodes=3))

    replacing = threading.Thread(target=replace)
    replacing.start()
    result = tidegate("scale", checkpoint, "--nodes", 4)
    replacing.join()
    assert result.exit_code == 1
    assert "rescale 1: nodes 2 -> 4, hybrid: replaced\n" in result.stdout


def test_a_second_one_that_has_to_wait_is_an_error(checkpoint: Path, toy: Toy) -> None:
    toy.apply(Ask(nodes=4))
    toy.tick()
    result = tidegate("scale", checkpoint, "--nodes", 3)
    assert isinstance(result.exception, ControlError)
    assert "rescale 1 is under way" in str(result.exception)
    assert len(toy.history()) == 1


def test_a_pipeline_that_goes_away_meanwhile(tmp_path: Path) -> None:
    toy = Toy()
    gone = threading.Event()

    def run() -> None:
        with ControlServer(toy, checkpoint=tmp_path):
            gone.set()
            under_way(toy)
            toy.tick()

    pipeline = threading.Thread(target=run)
    pipeline.start()
    assert gone.wait(30)
    result = tidegate("scale", tmp_path, "--nodes", 4)
    pipeline.join()
    assert isinstance(result.exception, ControlError)
    assert re.match(r"rescale 1 was .*; then: toy does not answer at ", str(result.exception))


@pytest.mark.parametrize("words", [[], ["--strategy", "lazy"], ["--nodes", "0"], ["--strategy", "fast"]])
def test_wrong_usage_ends_with_2(tmp_path: Path, words: list[str]) -> None:
    assert tidegate("scale", tmp_path, *words).exit_code == 2


def test_on_a_terminal_there_is_a_bar_that_goes_away(checkpoint: Path, toy: Toy) -> None:
    with ticking(toy, 0.3):
        code, text = terminal("scale", checkpoint, "--nodes", 4)
    assert code == 0
    assert re.search(r"━.* \S*0:00:0\d\S* moving, \d+ of 12 key groups, \S+ MB", text)
    assert "rescale 1: starting" not in text
    last = text.rpartition("\x1b[1A\x1b[2K")[2].replace("\r\n", "\n")
    assert last == f"rescale 1: nodes 2 -> 4, hybrid: settled\n{FIGURES}"


def test_the_bar_fits_the_terminal(checkpoint: Path, toy: Toy) -> None:
    with ticking(toy, 0.2):
        _, text = terminal("scale", checkpoint, "--nodes", 4, columns=80)
    frames = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in re.split(r"[\r\n]", text)]
    bars = [frame for frame in frames if frame.startswith("━")]
    assert bars
    assert max(map(len, bars)) <= 80
    assert all("…" not in bar for bar in bars)


def test_ctrl_c_ends_the_watching_but_not_the_rescale(checkpoint: Path, toy: Toy) -> None:
    code, text = terminal("scale", checkpoint, "--nodes", 4, interrupt_at="starting")
    assert code == 130
    assert "rescale 1 continues; `tidegate history` shows how it went" in text
    assert "Traceback" not in text
    assert toy.history()[0].phase == "starting"
