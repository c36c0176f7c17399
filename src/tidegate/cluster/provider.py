"""What a pipeline needs of the machines that compute for it."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tidegate.cluster.warming import Warming
from tidegate.errors import ClusterError
from tidegate.spark.executors import Executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A lost executor is noticed in seconds, where Spark on its own would take more than a minute.
_TUNED = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
    "spark.rpc.askTimeout": "20s",
    "spark.rpc.lookupTimeout": "20s",
    "spark.shuffle.io.retryWait": "300ms",
    "spark.shuffle.io.maxRetries": "2",
    # Tasks of a batch are short: waiting for a nearer executor costs more than the way to another one.
    "spark.locality.wait": "0s",
    # But the job that warms up an executor waits for that one, and gets its slots before any batch does.
    "spark.locality.wait.process": "3s",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": (Path(__file__).parent / "pools.xml").as_uri(),
    # Without it, an executor that shall go gets no tasks any more, but stays.
    "spark.decommission.enabled": "true",
}


class Cluster(ABC):
    """Where the tasks of a session run; a context manager that closes it.

    Start a session on `master` with `conf`, then `attach` it. Stop the session before `close`.
    """

    def __init__(self, master: str, conf: Mapping[str, str]) -> None:
        self.master = master
        """What the session connects to."""
        self.conf = conf
        """Spark settings that the session has to have."""
        self._executors: Executors | None = None
        self._warming: Warming | None = None
        self._retained: int | None = None

    @abstractmethod
    def attach(self, spark: SparkSession) -> None:
        """Take charge of the executors of this session; returns when tasks can run."""

    @abstractmethod
    def fit(self, executors: int) -> int:
        """Have about so many executors, and tell how many that is going to be.

        No query is restarted: new executors take tasks when they are warm; those that are too many take no
        more tasks and leave once they are done. May be called at any time, also while an earlier change is
        under way.
        """

    def executors(self) -> tuple[str, ...]:
        """The ids of those that live, oldest first, without the driver."""
        executors = self._executors
        return executors.ids() if executors else ()

    def retain(self, executors: int) -> None:
        """Tell how many executors the next `fit` is for, so that state can move away from machines that will
        have none."""
        self._retained = executors

    def staying(self) -> frozenset[str]:
        """The ids of the executors that live and that nobody has told to end, or is about to."""
        executors = self._executors
        leaving = executors.leaving if executors else set[str]()
        ids = [id for id in self.executors() if id not in leaving]
        return frozenset(ids[: self._retained])

    def close(self) -> None:
        """End what was started for this cluster. May be called again."""
        if self._warming is not None:
            self._warming.close()
        self._executors = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _await_executors(self, spark: SparkSession, count: int, seconds: float) -> bool:
        """Whether there are so many in time. They are warmed up, and so are those that come later."""
        assert self._executors is not None
        until = time.monotonic() + seconds
        while len(self._executors.ids()) < count:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        self._warming = Warming(spark, self._executors)
        return True


def executor_conf(cores: int, memory: str) -> dict[str, str]:
    """Settings for executors of this size that come and go.

    There is no upper bound of cores among them: it would shut out executors that come later.
    """
    return {
        **_TUNED,
        "spark.executor.cores": str(cores),
        "spark.executor.memory": memory,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_import_path()),
        "spark.executorEnv.PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def checked_count(executors: int) -> int:
    """The number, when a pipeline can run on so many executors."""
    if executors < 1:
        raise ClusterError(f"a pipeline cannot run on {executors} executors; ask for 1 or more")
    return executors


def _import_path() -> list[str]:
    """The folders that this process imports from and that are not the interpreter's own: an executor, which
    starts in a folder of its own, would not find them."""
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    own = {Path(place).resolve() for place in (*library, *site.getsitepackages())}
    found = dict.fromkeys(Path(place).resolve() for place in (*sys.path, str(Path(__file__).parents[2])))
    return [str(place) for place in found if place.is_dir() and not own.intersection((place, *place.parents))]
