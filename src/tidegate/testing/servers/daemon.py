"""A server process that a test owns."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tidegate.errors import TidegateError

T = TypeVar("T")

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_LOG_TAIL = 30
# Below the range from which the kernel takes the near end of outgoing connections, so that nothing but
# another server can take the port between our look and the server's bind.
_PORTS = range(20_000, 32_000)


class ServerError(TidegateError, RuntimeError):
    """A test server cannot be installed or started. Operator action: the line in the message."""


@contextmanager
def home(server: str) -> Iterator[Path]:
    """A folder for a server's files, gone at the end of the block."""
    with tempfile.TemporaryDirectory(prefix=f"tidegate-{server}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def packaged(server: str, packages: str, find: Callable[[], T | None]) -> T:
    """What `find` finds, after installing Debian's packages if it finds nothing and we may."""
    found = find()
    if found is not None:
        return found
    line = f"apt-get update && apt-get install -y --no-install-recommends {packages}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServerError(f"{server} is not installed; as root, run: {line}")
    # A package must neither ask questions nor start a server of its own.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=quiet, check=False)
    found = find()
    if found is None:
        story = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise ServerError(f"{server} could not be installed; try: {line}\n{story}")
    return found


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe:
            # As servers do: a port that is only waiting out its last connections is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerError(f"no free port on loopback between {_PORTS.start} and {_PORTS.stop}")


@contextmanager
def running(
    command: Sequence[str],
    *,
    name: str,
    log: Path,
    answers: Callable[[], bool],
    stop_signal: int,
    user: str | None = None,
) -> Iterator[int]:
    """Run `command` until the block ends, yielding its process id once `answers` says so.

    The kernel kills the server when the thread that started it dies, however it dies.
    """
    launcher = [_setpriv(), "--pdeathsig", "KILL"]
    if user is not None:
        launcher += ["--reuid", user, "--regid", user, "--clear-groups"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*launcher, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the test process, which then stops its servers
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not answers():
            if process.poll() is not None:
                raise ServerError(f"{name} exited at start with status {process.returncode}:\n{_tail(log)}")
            if time.monotonic() > deadline:
                raise ServerError(f"{name} did not answer within {_START_SECONDS:.0f} s:\n{_tail(log)}")
            time.sleep(0.05)
        yield process.pid
    finally:
        if process.poll() is None:
            process.send_signal(stop_signal)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _setpriv() -> str:
    path = shutil.which("setpriv")
    if path is None:
        raise ServerError("test servers need the command setpriv: apt-get install -y util-linux")
    return path


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LOG_TAIL:]) or "(no output)"
