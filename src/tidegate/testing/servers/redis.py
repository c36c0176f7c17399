"""A real Redis server that keeps nothing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.testing.servers.daemon import ServerError, free_port, running

_INSTALL = "apt-get update && apt-get install -y --no-install-recommends redis-server"


@contextmanager
def redis() -> Iterator[str]:
    """Run a server for the length of the block and yield its URL. What is in it goes with it."""
    program = installed()
    home = Path(tempfile.mkdtemp(prefix="tidegate-redis-"))
    try:
        port = free_port()
        settings = {
            "bind": "127.0.0.1",
            "port": port,
            "dir": home,
            "save": "",
            "appendonly": "no",
        }
        options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        with running(
            [program, *options],
            name="Redis",
            log=home / "server.log",
            answers=lambda: _answers(port),
            stop_signal=signal.SIGTERM,
        ):
            yield f"redis://127.0.0.1:{port}/0"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def installed() -> str:
    """The server's program, installed when missing and we may."""
    program = shutil.which("redis-server")
    if program is not None:
        return program
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServerError(f"Redis is not installed; as root, type: {_INSTALL}")
    # The package would start a server of its own, which nobody asked for.
    with tempfile.TemporaryDirectory() as folder:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        done = subprocess.run(
            ["sh", "-c", _INSTALL], capture_output=True, text=True, env=quiet, cwd=folder, check=False
        )
    program = shutil.which("redis-server")
    if program is None:
        story = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise ServerError(f"Redis could not be installed; try: {_INSTALL}\n{story}")
    return program


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
