"""A cluster of Spark on the hosts of a lab: Spark's standalone mode."""

from __future__ import annotations

import logging
import math
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tidegate.cluster.daemons import Daemon, start_master, start_worker
from tidegate.errors import LabError, TidegateError
from tidegate.lab.host import Host
from tidegate.spark.standalone import registered_workers

if TYPE_CHECKING:
    from tidegate.lab.lab import Lab

log = logging.getLogger(__name__)

_PORT = 7077
_FILES = Path("/var/tmp/spark")
"""On a host: where executors work."""
_START = 180.0
"""Seconds that workers have to register."""
_POLL = 0.2
"""Seconds between two checks."""
_PAUSE = 2.0
"""Seconds between two starts on one host: what cannot run must not keep the machine busy."""


@dataclass(slots=True)
class _Service:
    """A process that runs whenever its host is up."""

    host: Host
    start: Callable[[Host], Daemon]
    daemon: Daemon | None = None
    started: float = -math.inf

    def keep(self) -> None:
        """Start it if it should run and does not."""
        if self.daemon is not None and self.daemon.alive:
            return
        now = time.monotonic()
        if self.host.alive and now - self.started >= _PAUSE:
            ended, self.started, self.daemon = self.daemon, now, None
            if ended is not None:
                log.warning("Spark has ended on host %s:\n%s", self.host.name, ended.log_tail())
                ended.end()
            self.daemon = self.start(self.host)


class SparkCluster:
    """A master on one host and workers on others, from `with` to its end.

        with Lab({"hosts": {"near": {}, "far": {"count": 2}}}) as lab, SparkCluster(lab, "near") as spark:
            how = ["--master", spark.url, "--set", "security.spark=off"]
            lab["near"].run(["tidegate", "run", "job.py", *how])

    What ends is started again as long as its host is up; also the worker of a host that boots later. A master
    that was started again knows nothing of drivers that were there before: they keep their executors, and get
    no others.
    """

    def __init__(
        self,
        lab: Lab,
        master: str,
        workers: Sequence[str],
        *,
        cores: int = 1,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`cores` and `memory` are of each worker, for all of its executors; these have the environment."""
        self.url = f"spark://{lab[master].name}:{_PORT}"
        """What drivers on the hosts connect to: their `spark.master`."""
        self._cores, self._memory, self._environment = cores, memory, environment or {}
        self._folder = tempfile.TemporaryDirectory(
            prefix=f"tidegate-lab-{lab.name}-", ignore_cleanup_errors=True
        )
        self._numbers = count(1)
        self._master = _Service(lab[master], self._start_master)
        self._workers = [_Service(lab[name], self._start_worker) for name in workers]
        self._before: dict[str, tuple[Daemon | None, int]] = {}
        """By host, the master and how much it had said when the worker started."""
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="lab-spark", daemon=True)

    def __enter__(self) -> Self:
        """Returns when the workers of all hosts that are up have registered."""
        try:
            self._keep()
            self._watcher.start()
            self.await_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        if self._watcher.is_alive():
            self._watcher.join()
        daemons = [service.daemon for service in (*self._workers, self._master) if service.daemon]
        for daemon in daemons:
            daemon.request_end()
        for daemon in daemons:
            daemon.end()
        self._folder.cleanup()

    @property
    def registered(self) -> frozenset[str]:
        """The hosts with a worker that runs and has registered with the master."""
        master = self._master.daemon
        if master is None:
            return frozenset()
        said, found = master.log(), set()
        for worker in self._workers:
            host, daemon = worker.host, worker.daemon
            if host.alive and daemon is not None and daemon.alive:
                heard, before = self._before[host.name]
                if host.address in registered_workers(said[before if heard is master else 0 :]):
                    found.add(host.name)
        return frozenset(found)

    def await_workers(self) -> None:
        """Wait until the workers of all hosts that are up have registered with the master."""
        until = time.monotonic() + _START
        while missing := self._up() - self.registered:
            if time.monotonic() > until:
                told = self._master.daemon.log_tail() if self._master.daemon else "(it does not run)"
                raise LabError(
                    f"no worker of Spark has registered from {', '.join(sorted(missing))} within "
                    f"{_START:.0f} s. The master's last output:\n{told}"
                )
            time.sleep(_POLL)

    def _up(self) -> set[str]:
        return {worker.host.name for worker in self._workers if worker.host.alive}

    def _watch(self) -> None:
        while not self._over.wait(_POLL):
            try:
                self._keep()
            except (TidegateError, OSError) as error:
                # A host may go down just now; the next check finds out.
                log.warning("Spark could not be started in the lab: %s", error)

    def _keep(self) -> None:
        # The master first: a worker that comes too early is turned away, and takes its time to come again.
        for service in (self._master, *self._workers):
            service.keep()

    def _start_master(self, host: Host) -> Daemon:
        place = partial(host.command_line, cwd="/")
        daemon, _ = start_master(self._next_folder(host), host=host.name, port=_PORT, placed=place)
        return daemon

    def _start_worker(self, host: Host) -> Daemon:
        master = self._master.daemon
        self._before[host.name] = master, len(master.log()) if master else 0
        return start_worker(
            self._next_folder(host),
            self.url,
            cores=self._cores,
            memory=self._memory,
            host=host.address,
            files=_FILES,
            environment=self._environment,
            placed=partial(host.command_line, cwd="/"),
        )

    def _next_folder(self, host: Host) -> Path:
        return Path(self._folder.name) / f"{host.name}-{next(self._numbers)}"
