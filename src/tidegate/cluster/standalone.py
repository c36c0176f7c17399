"""An existing standalone master, whose workers come and go as they like."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.cluster.provider import Cluster, checked_count, executor_conf
from tidegate.cluster.warming import Warming
from tidegate.errors import ClusterError
from tidegate.spark.executors import Executor, Executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = ("127.0.0.1", "localhost")


class Standalone(Cluster):
    """Executors on the workers of a master at `spark://host:port`.

    As long as `fit` was not called, every worker with room gets an executor, also those that join later.
    From then on there are as many as were asked for, as far as there is room.
    """

    def __init__(self, master: str, *, cores: int = 1, memory: str = "1g", patience: float = 120.0) -> None:
        """`cores` and `memory` are of one executor; its Python must be where this process has it. `patience`,
        in seconds, is how long `attach` waits for the first one."""
        if not master.startswith("spark://"):
            raise ClusterError(f"{master!r} is no standalone master: write it like spark://host:7077")
        self._master, self._patience = master, patience
        self._conf = executor_conf(cores, memory)
        host = master.removeprefix("spark://").partition(":")[0]
        if host in _LOOPBACK:
            self._conf |= {"spark.driver.host": host, "spark.driver.bindAddress": host}
        self._executors: Executors | None = None
        self._warming: Warming | None = None

    @property
    def master(self) -> str:
        return self._master

    @property
    def conf(self) -> Mapping[str, str]:
        return self._conf

    def attach(self, spark: SparkSession) -> None:
        """Returns when there is an executor."""
        self._executors = Executors(spark)
        until = time.monotonic() + self._patience
        while not self._executors.alive():
            if time.monotonic() > until:
                cores, memory = self._conf["spark.executor.cores"], self._conf["spark.executor.memory"]
                raise ClusterError(
                    f"{self._master} gave no executor in {self._patience:.0f} s: is there a worker with "
                    f"{cores} free cores and {memory} of memory, and does it reach this machine?"
                )
            time.sleep(0.1)
        self._warming = Warming(spark, self._executors)

    def fit(self, executors: int) -> int:
        """As many as asked for; where the workers lack the room for that, when others join."""
        wanted = checked_count(executors)
        if self._executors is None:
            raise ClusterError("attach the session first: it is Spark that starts and ends executors")
        # First, or the master would replace those that end.
        self._executors.request_total(wanted)
        staying = [executor.id for executor in self._executors.alive() if not executor.leaving]
        self._executors.decommission(staying[wanted:])
        return wanted

    def executors(self) -> tuple[Executor, ...]:
        executors = self._executors
        return executors.alive() if executors else ()

    def close(self) -> None:
        """Lets go of the session; the cluster stays."""
        if self._warming is not None:
            self._warming.close()
        self._executors = None
