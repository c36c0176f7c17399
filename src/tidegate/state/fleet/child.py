"""A state node as a child of this process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import StateError
from tidegate.state.node.spec import NodeSpec
from tidegate.state.wire.access import SOCKET

_log = logging.getLogger(__name__)

_START = 60.0
"""Seconds that a node has until it listens."""
_GENTLE = 10.0
"""Seconds after which it no longer leaves a busy machine to others: it might never listen."""
_STARTS = 3
"""So often a node is started that is killed before it listens."""
_END = 5.0
"""Seconds that a process which has closed its output gets to end."""
_LOW = 15
"""The priority of a node that starts while others work, as `nice` has it."""


class _KilledError(StateError):
    """A node was killed before it listened."""


@dataclass(frozen=True, slots=True)
class Child:
    """A node that listens. It ends with this process, however that ends."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def request_end(self) -> None:
        """Have it end by itself, without waiting for that."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self, seconds: float) -> None:
        """See it gone, with all that it leaves but its log: it has so long to end by itself."""
        self.request_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.address.startswith(SOCKET):
            Path(self.address.removeprefix(SOCKET)).unlink(missing_ok=True)


def log_of(scratch: Path, name: str) -> Path:
    """What a node says goes there, and stays for a while."""
    return scratch / f"{name}.log"


def start(spec: NodeSpec, *, name: str, scratch: Path, bind: str, gently: bool = False) -> Child:
    """Start a node, with a folder of its own in `scratch`; returns when it listens.

    One that says why it cannot start is believed; one that was killed is replaced.
    """
    for _ in range(_STARTS - 1):
        try:
            return _start_once(spec, name, scratch, bind, gently=gently)
        except _KilledError as error:
            _log.warning("%s; starting it again", error)
    return _start_once(spec, name, scratch, bind, gently=gently)


def _start_once(spec: NodeSpec, name: str, scratch: Path, bind: str, *, gently: bool) -> Child:
    folder = scratch / name
    with log_of(scratch, name).open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "tidegate.state.node.process"),
                *("--name", name, "--scratch", str(folder), "--bind", bind, *spec.arguments()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **spec.environment},
            # Ctrl-C is the driver's to handle; it still needs its nodes to end the batch.
            start_new_session=True,
        )
    gently = gently and os.geteuid() == 0  # Others may not take it back.
    hurry = threading.Timer(_GENTLE, _prioritise, (process.pid, 0))
    if gently:
        _prioritise(process.pid, _LOW)
        hurry.start()
    line = first_line(process, _START)
    hurry.cancel()
    if gently:
        _prioritise(process.pid, 0)
    if not line.endswith(b"\n"):
        # One that closed its output has ended, or is about to.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END)
        in_time = process.returncode is not None
        process.kill()
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)
        said = log_of(scratch, name).read_text(errors="replace")[-2000:].strip()
        kind = _KilledError if in_time and process.returncode < 0 else StateError
        how = f"exit code {process.returncode}" if in_time else f"it did not listen within {_START:.0f} s"
        raise kind(f"state node {name} did not start ({how}): {said or 'no output'}")
    return Child(name, json.loads(line)["address"], process, folder)


def _prioritise(pid: int, nice: int) -> None:
    """Set how much of a busy machine a process gets; Linux has a say per session as well."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def first_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """What a process says first; without its line end when the process ended or the time is over before."""
    assert process.stdout is not None
    until, line = time.monotonic() + seconds, b""
    with process.stdout as stream:
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            said = os.read(stream.fileno(), 4096) if ready else b""
            if not said:
                break
            line += said
    return line
