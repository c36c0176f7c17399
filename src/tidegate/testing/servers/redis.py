"""A real Redis server that keeps nothing."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.testing.servers.daemon import free_port, home, packaged, running


@contextmanager
def redis() -> Iterator[str]:
    """Run a server for the length of the block and yield its URL. Its data is gone with it."""
    program = packaged("Redis", "redis-server", lambda: shutil.which("redis-server"))
    with home("redis") as folder:
        port = free_port()
        settings = {"bind": "127.0.0.1", "port": port, "dir": folder, "save": "", "appendonly": "no"}
        options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        with running(
            [program, *options],
            name="Redis",
            log=folder / "server.log",
            answers=lambda: _answers(port),
            stop_signal=signal.SIGTERM,
        ):
            yield f"redis://127.0.0.1:{port}/0"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
