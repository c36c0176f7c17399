"""Compute on this machine: in the driver's JVM, or by a standalone cluster of processes."""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cluster.daemons import Daemon, start_master, start_worker
from tidegate.cluster.provider import Cluster, checked_count, executor_conf
from tidegate.cluster.workers import WorkerState, reconcile
from tidegate.errors import ClusterError
from tidegate.spark import authentication, class_archive, session
from tidegate.spark.executors import Executors
from tidegate.spark.standalone import LOOPBACK, launched_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_START = 180.0
"""Seconds that the first executors have to register."""
_POLL = 0.2
"""Seconds between two checks of the workers."""
_PAUSE = 2.0
"""Seconds between two attempts to replace dead workers: one that cannot run must not keep us busy."""
_NO_MASTER = "the Spark master of this cluster has exited; restart the pipeline. Its last output:"


class InProcess(Cluster):
    """Spark in the driver's JVM: as many tasks at a time as it has slots, and no executors to add."""

    def __init__(self, master: str = "local[*]") -> None:
        super().__init__(master, {})
        self._slots: int | None = None

    def attach(self, spark: SparkSession) -> None:
        self._slots = spark.sparkContext.defaultParallelism

    def fit(self, executors: int) -> int:
        """Changes nothing; tells how many slots there are."""
        checked_count(executors)
        if self._slots is None:
            raise ClusterError("attach the session first: until then the number of slots is not known")
        return self._slots


@dataclass(slots=True)
class _Worker:
    name: str
    daemon: Daemon
    retired_at: float | None = None


class LocalCluster(Cluster):
    """A master and `workers` workers on loopback, each with one executor of `cores` and `memory`. They talk
    to nobody who does not know their secret.

    A worker that dies is replaced. All processes end, and all files go, with this object and with this
    process, however it ends.
    """

    def __init__(self, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        """Returns when there is a master; `attach` waits for the executors."""
        self._target = checked_count(workers)
        self._cores, self._memory = cores, memory
        self._home = Path(tempfile.mkdtemp(prefix="tidegate-cluster-"))
        self._workers: list[_Worker] = []
        self._count = 0
        self._no_start_before = 0.0
        self._change = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="cluster-watcher", daemon=True)
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self._home, ignore_errors=True)
            secret = secrets.token_urlsafe(32)
            # In the folder of the master, which goes even if this process is killed.
            folder = self._home / "master"
            folder.mkdir()
            self._properties = folder / "properties"
            authentication.write_properties(self._properties, secret)
            self._daemon, master = start_master(folder, properties=self._properties)
            java = f"-Dlog4j2.configurationFile={session.LOGGING.as_uri()} {class_archive.existing()}"
            conf = {
                **executor_conf(cores, memory),
                **authentication.authenticated(secret, encrypted=False),
                "spark.driver.host": LOOPBACK,
                "spark.driver.bindAddress": LOOPBACK,
                "spark.executor.extraJavaOptions": java.strip(),
            }
            super().__init__(master, conf)
            undo.callback(self.close)
            self._reconcile()
            undo.pop_all()
        self._watcher.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the master and of the workers, the oldest first."""
        with self._change:
            return self._daemon.pid, *(worker.daemon.pid for worker in self._workers)

    def attach(self, spark: SparkSession) -> None:
        """Returns when every worker has its executor."""
        with self._change:
            self._executors = Executors(spark)
            self._executors.request_total(self._target)
        if not self._await_executors(spark, self._target, _START):
            raise ClusterError(
                f"only {len(self.executors())} of {self._target} executors registered within {_START:.0f} s. "
                f"The master's last output:\n{self._daemon.log_tail()}"
            )

    def fit(self, executors: int) -> int:
        with self._change:
            self._check_open()
            self._target = checked_count(executors)
            if self._executors is not None:
                # First, or the master would replace those that end.
                self._executors.request_total(self._target)
            self._no_start_before = 0.0
            self._reconcile()
            return self._target

    def close(self) -> None:
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()
        with self._change:
            super().close()
            daemons = [*(worker.daemon for worker in self._workers), self._daemon]
            self._workers = []
        for daemon in daemons:
            daemon.request_end()
        for daemon in daemons:
            daemon.end()
        shutil.rmtree(self._home, ignore_errors=True)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ClusterError("this cluster is closed; start another one")
        if not self._daemon.alive:
            raise ClusterError(f"{_NO_MASTER}\n{self._daemon.log_tail()}")

    def _watch(self) -> None:
        """Replace workers that die, and stop those that are retired and empty."""
        while not self._closing.wait(_POLL):
            if not self._daemon.alive:
                log.error("the Spark master has exited: lost executors will not be replaced")
                return
            try:
                with self._change:
                    self._reconcile()
            except Exception as error:
                # Spark may be stopping just now. If it is something else, the next check finds it again.
                log.warning("the workers of the cluster could not be checked: %s", error)
                self._closing.wait(_PAUSE)

    def _reconcile(self) -> None:
        """Compare the workers with the target, and make the changes that are due."""
        changes = reconcile(self._target, self._worker_states())
        now = time.monotonic()
        for worker in self._workers:
            if worker.name in changes.retire:
                log.info("%s is retired", worker.name)
                worker.retired_at = now
        if self._executors is not None and changes.decommission:
            self._executors.decommission(changes.decommission)
        for worker in [worker for worker in self._workers if worker.name in changes.stop]:
            if worker.retired_at is None:
                log.warning("%s has ended by itself:\n%s", worker.name, worker.daemon.log_tail())
            log.info("%s is stopped", worker.name)
            self._workers.remove(worker)
            worker.daemon.end()
        if changes.start and now >= self._no_start_before:
            for _ in range(changes.start):
                self._start_worker()
            self._no_start_before = now + _PAUSE

    def _worker_states(self) -> list[WorkerState]:
        application, registered, alive = None, frozenset[str](), frozenset[str]()
        shrinking = any(worker.retired_at is not None for worker in self._workers)
        # Executors matter only while workers are retired; asking Spark several times a second costs.
        if self._executors is not None and (shrinking or len(self._workers) > self._target):
            application = self._executors.application
            alive = frozenset(self._executors.ids())
            registered = self._executors.ever_registered()
        now, states = time.monotonic(), []
        for worker in self._workers:
            work = worker.daemon.folder / "work"
            launched = launched_executors(work, application) if application else frozenset[str]()
            states.append(
                WorkerState(
                    name=worker.name,
                    alive=worker.daemon.alive,
                    executors=launched & alive,
                    starting=not launched <= registered,
                    retired_for=None if worker.retired_at is None else now - worker.retired_at,
                )
            )
        return states

    def _start_worker(self) -> None:
        self._count += 1
        name = f"worker-{self._count}"
        daemon = start_worker(
            self._home / name,
            self.master,
            cores=self._cores,
            memory=self._memory,
            properties=self._properties,
        )
        log.info("started %s, process %d", name, daemon.pid)
        self._workers.append(_Worker(name, daemon))
