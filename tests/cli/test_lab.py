from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.lab.kit import left_behind
from tidegate.cli.main import app
from tidegate.errors import ConfigError, LabError

pytestmark = pytest.mark.lab

LAB = """
[hosts.near]
[hosts.far]
delay = "12.5 ms"
[hosts.later]
up = false

[[chaos]]
do = "kill"
host = "near"
at = "1 hour"
"""
CHAOS = '[[chaos]]\ndo = "kill"\nhost = "far"\nat = "0 s"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lab.toml"
    path.write_text(LAB)
    return path


def tidegate(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.main", "lab", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@contextmanager
def up(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A lab until Ctrl-C, which must end it properly."""
    with tidegate("up", *words) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_it_shows_hosts_and_round_trips_and_lets_commands_run(file: Path) -> None:
    with up(file) as process:
        assert process.stdout is not None
        name = process.stdout.readline().split()[1]
        assert process.stdout.readline().split() == ["host", "address", "near", "far", "later"]
        shown = [process.stdout.readline().split() for _ in range(3)]
        assert [row[:2] for row in shown] == [["near", "10.77.0.1"], ["far", "10.77.0.2"], ["later", "down"]]
        assert float(shown[0][3]) >= 12.5
        assert shown[0][4] == "-"
        assert "while the machine is busy" in process.stdout.readline()
        with tidegate("enter", "--lab", name, "far", "sh", "-c", "hostname; exit 3") as command:
            assert command.communicate()[0] == "far\n"
            assert command.returncode == 3
        with tidegate("enter", "--lab", name, "later") as command:
            assert (
                f"no host 'later' is up; these are: far of {name}, near of {name}" in command.communicate()[1]
            )
            assert command.returncode == 1
    assert not left_behind(name)


def test_a_program_gets_one_document(file: Path) -> None:
    with up(file, "--json") as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            text += process.stdout.readline()
        found = json.loads(text)
        assert found["hosts"] == {"near": "10.77.0.1", "far": "10.77.0.2", "later": "10.77.0.3"}
        assert {(trip["from"], trip["to"]) for trip in found["round_trips"]} == {
            ("near", "far"),
            ("far", "near"),
        }
        assert all(trip["seconds"] >= trip["expected"] == 0.0125 for trip in found["round_trips"])


def test_chaos_may_come_from_another_file_and_is_told(file: Path, tmp_path: Path) -> None:
    chaos = tmp_path / "chaos.toml"
    chaos.write_text(CHAOS)
    with up(file, "--chaos", chaos, "--no-check") as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("far killed\n")


def test_what_is_wrong_in_a_file_is_told_with_its_name(file: Path, tmp_path: Path) -> None:
    file.write_text("[hosts.near]\ndelay = 3\n")
    with pytest.raises(ConfigError, match=r"hosts.near.delay \(.*lab.toml\): expected a duration"):
        CliRunner().invoke(app, ["lab", "up", str(file)], catch_exceptions=False)
    file.write_text(f"{LAB}[[chaos]]\ndo = 'kill'\nhost = 'who'\nat = '1 s'\n")
    with pytest.raises(ConfigError, match=r"chaos\[2\] \(.*lab.toml\): there is no host 'who'"):
        CliRunner().invoke(app, ["lab", "up", str(file)], catch_exceptions=False)


def test_without_root_it_says_what_to_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"the lab needs root, .*: start it with sudo"):
        CliRunner().invoke(app, ["lab", "up", str(file)], catch_exceptions=False)
