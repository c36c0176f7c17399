"""A server process that a test owns."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidegate.errors import TidegateError

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_LOG_TAIL = 30
# Below the range from which the kernel takes the near end of outgoing connections, so that nothing but
# another server can take the port between our look and the server's bind.
_PORTS = range(20_000, 32_000)


class ServerError(TidegateError, RuntimeError):
    """A test server cannot be installed or started. Operator action: the line in the message."""


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
                raise ServerError(f"{name} ended with status {process.returncode} at start:\n{_tail(log)}")
            if time.monotonic() > deadline:
                raise ServerError(f"{name} does not answer after {_START_SECONDS:.0f} s:\n{_tail(log)}")
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
    return "\n".join(lines[-_LOG_TAIL:]) or "(it said nothing)"
