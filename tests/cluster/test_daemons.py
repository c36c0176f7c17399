"""Processes that end with all that they started, whoever ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.kit import Process, alive, await_that, family
from tidegate.cluster.daemons import Daemon
from tidegate.errors import ClusterError

# One that stays below its parent, one that leaves its session, and one whose parent has gone.
BREED = ["sh", "-c", "echo here; sleep 1000 & setsid sleep 1000 & (sleep 1000 &) ; wait"]
SLEEPERS = 3


def _sleepers(owner: int) -> list[Process]:
    return [one for one in family(owner) if one.command.startswith("sleep 1000")]


def _bred(owner: int) -> list[Process]:
    """All that came of it, once they are all there."""
    await_that(lambda: len(_sleepers(owner)) == SLEEPERS, "the processes are there")
    return _sleepers(owner)


def test_a_daemon_ends_with_all_that_came_of_it(tmp_path: Path) -> None:
    daemon = Daemon(BREED, folder=tmp_path / "home" / "one", environment={})
    processes = _bred(os.getpid())
    told = [daemon.alive]
    daemon.end()
    daemon.end()
    told.append(daemon.alive)
    assert told == [True, False]
    assert alive(processes) == []
    assert not (tmp_path / "home").exists()


def test_a_daemon_that_is_killed_leaves_its_log_and_nothing_else(tmp_path: Path) -> None:
    daemon = Daemon(BREED, folder=tmp_path / "home" / "one", environment={})
    try:
        processes = _bred(os.getpid())
        os.kill(daemon.pid, signal.SIGKILL)
        await_that(lambda: not daemon.alive, "it is seen to be dead")
        assert alive(processes) == []
        assert daemon.log_tail() == "here"
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
        processes = [*_bred(owner.pid), *family(owner.pid)]
    finally:
        owner.kill()
        owner.communicate()
    await_that(lambda: not alive(processes), "all end", told=lambda: str(alive(processes)))
    assert not home.exists()


def test_a_daemon_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"/no/such/program could not be started.*No such file"):
        Daemon(["/no/such/program"], folder=tmp_path / "home" / "one", environment={})
    assert not (tmp_path / "home").exists()
