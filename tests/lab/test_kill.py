"""The lab's process is killed, and nothing is left of ten hosts, of which some are at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.kit import await_that, devices, left_behind, loops

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


@pytest.mark.parametrize("doing", ["idle", "checks"])
def test_nothing_is_left_of_a_lab_that_was_killed(doing: str, tmp_path: Path) -> None:
    before = devices()
    command = [sys.executable, "-c", PROGRAM, doing]
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        name, good, *disks = process.stdout.readline().split()
        assert good == "True", "round trips of ten hosts are off by a millisecond or more"
        assert sum(line.startswith("process") for line in left_behind(name)) >= 30
        files = loops(disks)
        assert len(files) == 2
        os.kill(process.pid, signal.SIGKILL)
    await_that(lambda: not left_behind(name), "processes and cgroups of the lab are gone")
    await_that(lambda: not loops(disks) & files, "the kernel let go of the disks")
    assert devices() <= before
    assert not list(tmp_path.iterdir())
