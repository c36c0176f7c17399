"""`tidegate stop` of a pipeline in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.control.kit import Toy
from tidegate.cli.main import app
from tidegate.control.server import ControlServer
from tidegate.errors import ControlError


def tidegate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@contextmanager
def running(toy: Toy, checkpoint: Path) -> Iterator[None]:
    """A pipeline that ends when it is asked to."""
    up = threading.Event()

    def run() -> None:
        with ControlServer(toy, checkpoint=checkpoint):
            up.set()
            toy.stopped.wait()

    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(30)
    try:
        yield
    finally:
        toy.stopped.set()
        thread.join()


def test_it_waits_until_the_pipeline_has_ended(tmp_path: Path) -> None:
    with running(Toy(), tmp_path):
        result = tidegate("stop", tmp_path)
        assert not (tmp_path / "control.json").exists()
    assert (result.exit_code, result.stdout) == (0, "toy has stopped\n")


def test_who_does_not_wait_returns_while_the_batch_is_finished(tmp_path: Path) -> None:
    toy = Toy()
    with ControlServer(toy, checkpoint=tmp_path):
        result = tidegate("stop", tmp_path, "--no-wait")
        assert toy.status().phase == "stopping"
    assert (result.exit_code, result.stdout) == (0, "toy will stop after the current batch\n")


def test_as_json(tmp_path: Path) -> None:
    with running(Toy(), tmp_path):
        assert json.loads(tidegate("stop", tmp_path, "--json").stdout) == {"pipeline": "toy", "stopped": True}


def test_a_second_time_nothing_runs_there(tmp_path: Path) -> None:
    with running(Toy(), tmp_path):
        tidegate("stop", tmp_path)
        result = tidegate("stop", tmp_path)
    assert isinstance(result.exception, ControlError)
    assert "no pipeline with a control API runs on" in str(result.exception)


@pytest.mark.parametrize("command", ["status", "plan", "scale", "rebalance", "history", "stop"])
def test_every_command_says_when_nothing_runs_there(tmp_path: Path, command: str) -> None:
    words = ["--nodes", "2"] if command in ("plan", "scale") else []
    result = tidegate(command, tmp_path / "none", *words)
    assert isinstance(result.exception, ControlError)
    assert str(result.exception) == f"there is no checkpoint {tmp_path / 'none'}"
