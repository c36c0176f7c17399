"""What the tests of real hosts share. They need root, and fail without it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tidegate.lab import Host

_PATIENCE = 30.0
_QUICK = (sys.executable, "-I", "-S", "-c")

RECEIVE = """
import socket
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind(("0.0.0.0", 7))
open("/ready", "w").close()
while True:
    text, sender = port.recvfrom(2000)
    with open("/received", "a") as file:
        file.write(text.decode() + "\\n")
"""
SEND = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 7))
"""


def python(host: Host, program: str, *arguments: str) -> str:
    """What a short program prints on a host; it must succeed."""
    done = host.run([*_QUICK, program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


def running(host: Host, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    return host.start([*_QUICK, program, *arguments], stdout=subprocess.PIPE)


def await_that(condition: Callable[[], object], what: str, *, seconds: float = _PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited in vain until {what}"
        time.sleep(0.01)


def receiver(host: Host) -> subprocess.Popen[bytes]:
    """Takes datagrams, for `received`."""
    process = running(host, RECEIVE)
    await_that(lambda: host.path("/ready").exists(), "the receiver listens")
    return process


def send(host: Host, to: str, text: str) -> None:
    python(host, SEND, to, text)


def received(host: Host) -> list[str]:
    file = host.path("/received")
    return file.read_text().splitlines() if file.exists() else []


def left_behind(lab: str) -> list[str]:
    """What is on the machine of a lab with that name."""
    processes = [
        f"process {place.parent.name}"
        for place in Path("/proc").glob("[0-9]*/cmdline")
        if _mentions(place, lab)
    ]
    groups = Path("/sys/fs/cgroup")
    folders = [groups, *groups.iterdir(), *map(Path, ("/dev/shm", "/run", "/tmp", "/var/tmp"))]
    files = [str(place) for folder in folders for place in folder.glob(f"*{lab}*")]
    return processes + files


def _mentions(place: Path, text: str) -> bool:
    try:
        return text in place.read_text(errors="replace")
    except OSError:
        return False


def devices() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def loops(disks: Iterable[str | None]) -> set[str]:
    """The files behind those of the disks that are loop devices in use."""
    places = (Path(f"/sys/dev/block/{disk}/loop/backing_file") for disk in disks)
    return {place.read_text() for place in places if place.exists()}
