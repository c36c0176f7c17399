"""The lab's process is killed, and nothing is left of ten hosts of which some are at work, or of services."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.kit import await_that, devices, left_behind, loops
from tests.security.ports import command, processes
from tidegate.lab.network import has_netem

pytestmark = pytest.mark.lab

PROGRAM = """
import sys, time
from tidegate.lab import Lab

lab = Lab({"hosts": {
    "w": {"count": 8, "delay": "10 ms", "cpus": 0.5},
    "f": {"count": 2, "disk": "64m", "disk_in": "file"},
}})
lab.__enter__()
for host in lab.hosts.values():
    host.start([sys.executable, "-I", "-S", "-c", "import time; time.sleep(900)", lab.name])
while not all(host.processes(lab.name) for host in lab.hosts.values()):
    time.sleep(0.01)
lab["w-1"].freeze()
good = any(lab.check().good for _ in range(5))
print(lab.name, good, *(lab[name].disk for name in ("f-1", "f-2")), flush=True)
if sys.argv[1] == "checks":
    while True:
        lab.check()
time.sleep(900)
"""
SERVICES = """
import time
from tidegate.lab import Lab

lab = Lab({
    "hosts": {"near": {}, "far": {}, "depot": {}},
    "spark": {"master": "near", "workers": ["far"], "memory": "512m"},
    "store": {"host": "depot"},
})
lab.__enter__()
print(lab.name, flush=True)
time.sleep(900)
"""


@contextmanager
def killed(folder: Path, *program: str) -> Iterator[tuple[list[str], Callable[[], list[str]]]]:
    """A program with a lab, killed at the end: what it said, and what there is of it, on demand."""
    before = devices()
    # In the environment of all that it starts, however far from it.
    mark = secrets.token_hex(8)
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", *program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "TESTED_LAB": mark},
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()

        def left() -> list[str]:
            return left_behind(said[0]) + [command(pid) for pid in processes(mark)]

        yield said, left
        os.kill(process.pid, signal.SIGKILL)
    await_that(lambda: not left(), "processes, cgroups and files of the lab are gone")
    assert devices() <= before
    assert not list(folder.iterdir())


@pytest.mark.parametrize("doing", ["idle", "checks"])
def test_nothing_is_left_of_a_lab_that_was_killed(doing: str, tmp_path: Path) -> None:
    with killed(tmp_path, PROGRAM, doing) as (said, left):
        _, good, *disks = said
        assert good == "True", "round trips of ten hosts are off by a millisecond or more"
        assert any("tidegate.lab.switch" in what for what in left()) or has_netem()
        if doing == "checks":
            await_that(lambda: any("pinging.py" in what for what in left()), "it measures round trips")
        files = loops(disks)
        assert len(files) == 2
    await_that(lambda: not loops(disks) & files, "the kernel let go of the disks")


@pytest.mark.s3
@pytest.mark.slow
def test_nothing_is_left_of_services_either(tmp_path: Path) -> None:
    with killed(tmp_path, SERVICES) as (_, left):
        found = " ".join(left())
        for what in ("master.Master", "worker.Worker", "tidegate.lab.serving", "/tidegate-lab-"):
            assert what in found
