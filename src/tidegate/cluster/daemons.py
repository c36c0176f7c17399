"""Masters and workers of Spark's standalone cluster as processes on this machine."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tidegate.cluster import guard
from tidegate.errors import ClusterError
from tidegate.spark import standalone

_START = 120.0
"""Seconds that a master has until it can be connected to."""
_END = 20.0
"""Seconds until a guard that does not end is killed itself."""


class Daemon:
    """A process with all that it starts, in a folder that goes with it. It ends with this process as well,
    however that ends."""

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        """`folder` is made if it is not there. What the process says goes to `log` in it."""
        if sys.platform != "linux":
            raise ClusterError(
                "clusters of processes need Linux; set cluster.workers to 0 to run without one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._guard = subprocess.Popen(
            # Isolated and bare: it starts in no time, and imports nothing that could be missing.
            [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is the driver's to handle.
        )
        assert self._guard.stdout is not None
        assert self._guard.stderr is not None
        said = self._guard.stdout.readline()
        if not said:
            why = self._guard.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            self.end()
            raise ClusterError(f"{command[0]} could not be started in {folder}: {why}")
        self.pid = int(said)
        """Of the process itself, which its guard watches."""

    @property
    def alive(self) -> bool:
        """Whether it has not ended, by itself or otherwise."""
        assert self._guard.stdout is not None
        # The guard's next word, and its end, say the same.
        return self._guard.poll() is None and not select.select([self._guard.stdout], [], [], 0)[0]

    def log(self) -> str:
        """What it has written so far."""
        try:
            return (self.folder / "log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        """The last lines of that, for an error message."""
        return "\n".join(self.log().splitlines()[-20:]) or "(no output)"

    def request_end(self) -> None:
        """Have it end, without waiting for that."""
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()

    def end(self) -> None:
        """End it with all that it started. May be called again."""
        self.request_end()
        with self._guard:
            try:
                self._guard.wait(_END)
            except subprocess.TimeoutExpired:
                self._guard.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


Placed = Callable[[Sequence[str]], Sequence[str]]
"""The command line that runs a command where it belongs."""


def start_master(
    folder: Path,
    *,
    host: str = standalone.LOOPBACK,
    port: int = 0,
    properties: Path | None = None,
    placed: Placed = list,
) -> tuple[Daemon, str]:
    """A master and its address, once it takes workers; without more, on loopback at any free port.
    `properties` is a file with settings of Spark."""
    daemon = Daemon(
        placed(standalone.master_command(host, port, properties)),
        folder=folder,
        environment=standalone.environment(host),
    )
    until = time.monotonic() + _START
    while (address := standalone.master_address(daemon.log())) is None:
        if not daemon.alive or time.monotonic() > until:
            tail = daemon.log_tail()
            daemon.end()
            raise ClusterError(f"the Spark master did not start:\n{tail}")
        time.sleep(0.05)
    return daemon, address


def start_worker(
    folder: Path,
    master: str,
    *,
    cores: int,
    memory: str,
    host: str = standalone.LOOPBACK,
    files: Path | None = None,
    properties: Path | None = None,
    environment: Mapping[str, str] | None = None,
    placed: Placed = list,
) -> Daemon:
    """A worker, on loopback without more; it registers with the master by itself. What its executors write
    is in `files`, which is `folder` if left out. They inherit `environment`."""
    files = files or folder
    command = standalone.worker_command(
        files / "work", master, cores=cores, memory=memory, host=host, properties=properties
    )
    return Daemon(
        placed(command),
        folder=folder,
        environment={
            **standalone.environment(host),
            "SPARK_LOCAL_DIRS": str(files / "local"),
            **(environment or {}),
        },
    )
