"""`tidegate lab` as a person starts and ends it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.lab.kit import await_that
from tests.security.ports import command, processes
from tidegate.cli.main import app
from tidegate.errors import ConfigError, LabError

pytestmark = pytest.mark.lab

LAB = """
[hosts]
near = {}
far = {}
"""
KILL = """
[[chaos]]
at = "0 s"
do = "kill"
host = "far"
"""


def started(file: Path, mark: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.main", "lab", "up", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TESTED_LAB": mark},
    )


@pytest.mark.s3
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_lab_that_is_not_yet_up(number: signal.Signals, tmp_path: Path) -> None:
    file, mark = tmp_path / "lab.toml", secrets.token_hex(8)
    file.write_text(LAB + '[store]\nhost = "far"\n')
    with started(file, mark) as process:
        await_that(
            lambda: any("tidegate.lab.serving" in command(pid) for pid in processes(mark)), "its store starts"
        )
        process.send_signal(number)
        said, told = process.communicate()
    assert (process.returncode, said, told) == (0, "", "")
    assert not processes(mark)


def test_chaos_waits_for_the_round_trips(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(LAB + KILL)
    with started(file) as process:
        said, told = process.stdout, process.stderr
        assert said is not None
        assert told is not None
        first, _, near, far = (said.readline() for _ in range(4))
        assert f"sudo {sys.executable} -m tidegate.cli.main lab enter HOST" in first
        assert float(near.split()[3]) < 100
        assert float(far.split()[2]) < 100
        await_that(lambda: "far killed" in told.readline(), "chaos begins")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_a_wrong_schedule_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file, chaos = tmp_path / "lab.toml", tmp_path / "chaos.toml"
    file.write_text(LAB)
    chaos.write_text(KILL.replace("far", "afar"))
    with pytest.raises(ConfigError, match="there is no host 'afar'; did you mean far"):
        CliRunner().invoke(app, ["lab", "up", str(file), "--chaos", str(chaos)], catch_exceptions=False)


def test_who_is_not_root_is_told_so_before_a_host_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="the lab needs root"):
        CliRunner().invoke(app, ["lab", "enter", "near"], catch_exceptions=False)
