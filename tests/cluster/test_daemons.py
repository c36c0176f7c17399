"""Processes that end with all that they started, whoever ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.kit import alive, await_that, family
from tidegate.cluster import ClusterError
from tidegate.cluster.daemons import Daemon

# One that stays below its parent, one that leaves its session, and one whose parent has gone.
BREED = ["sh", "-c", "sleep 1000 & setsid sleep 1000 & (sleep 1000 &) ; echo here; wait"]
SLEEPERS = 3


def _sleepers(pid: int) -> int:
    return sum("sleep 1000" in one.command and not one.command.startswith("sh") for one in family(pid))


def _bred(owner: int) -> None:
    await_that(lambda: _sleepers(owner) >= SLEEPERS, "the processes are there")


def test_a_daemon_ends_with_all_that_came_of_it(tmp_path: Path) -> None:
    daemon = Daemon(BREED, folder=tmp_path / "home" / "one", environment={})
    _bred(os.getpid())
    processes = [one for one in family(os.getpid()) if "sleep 1000" in one.command]
    assert daemon.pid in {one.pid for one in processes}
    told = [daemon.alive]
    daemon.end()
    daemon.end()
    told.append(daemon.alive)
    assert told == [True, False]
    assert alive(processes) == []
    assert not (tmp_path / "home").exists()


def test_a_daemon_that_is_killed_leaves_its_last_words_and_nothing_else(tmp_path: Path) -> None:
    daemon = Daemon(BREED, folder=tmp_path / "home" / "one", environment={})
    try:
        _bred(os.getpid())
        processes = [one for one in family(daemon.pid) if "sleep 1000" in one.command]
        os.kill(daemon.pid, signal.SIGKILL)
        await_that(lambda: not daemon.alive, "it is seen to be dead")
        assert alive(processes) == []
        assert daemon.last_words() == "here"
    finally:
        daemon.end()


def test_a_daemon_ends_with_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code = (
        "import sys\nfrom pathlib import Path\nfrom tidegate.cluster.daemons import Daemon\n"
        f"Daemon({BREED!r}, folder=Path({str(home / 'one')!r}), environment={{}})\nsys.stdin.read()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        _bred(owner.pid)
        processes = family(owner.pid)
    finally:
        owner.kill()
        owner.communicate()
    await_that(lambda: not alive(processes), "all end", told=lambda: str(alive(processes)))
    assert not home.exists()


def test_a_daemon_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="/no/such/program cannot be run"):
        Daemon(["/no/such/program"], folder=tmp_path / "home" / "one", environment={})
    assert not (tmp_path / "home").exists()
