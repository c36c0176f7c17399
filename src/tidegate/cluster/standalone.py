"""An existing standalone master, whose workers come and go as they like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.cluster.provider import Cluster, checked_count, executor_conf
from tidegate.errors import ClusterError
from tidegate.spark.executors import Executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START = 120.0
"""Seconds that the first executor has to register."""


class Standalone(Cluster):
    """Executors on the workers of a master at `spark://host:port`.

    As long as `fit` was not called, every worker with room gets an executor, also those that join later.
    From then on there are as many as were asked for, as far as there is room. `close` leaves the workers.
    """

    def __init__(self, master: str, *, cores: int = 1, memory: str = "1g") -> None:
        """`cores` and `memory` are of one executor; its Python must be where this process has it."""
        if not master.startswith("spark://"):
            raise ClusterError(f"{master!r} is not a standalone master; write it like spark://host:7077")
        conf = executor_conf(cores, memory)
        host = master.removeprefix("spark://").partition(":")[0]
        if host in ("127.0.0.1", "localhost"):
            conf |= {"spark.driver.host": host, "spark.driver.bindAddress": host}
        super().__init__(master, conf)

    def attach(self, spark: SparkSession) -> None:
        """Returns when there is an executor."""
        self._executors = Executors(spark)
        if not self._await_executors(spark, 1, _START):
            raise ClusterError(
                f"{self.master} provided no executor within {_START:.0f} s; check that a worker has "
                f"{self.conf['spark.executor.cores']} free cores and {self.conf['spark.executor.memory']} of "
                "memory, and that it can reach this machine"
            )

    def fit(self, executors: int) -> int:
        """As many as asked for; where the workers lack the room for that, when others join."""
        wanted = checked_count(executors)
        if self._executors is None:
            raise ClusterError("attach the session first: it is Spark that starts and ends executors")
        # First, or the master would replace those that end.
        self._executors.request_total(wanted)
        staying = [id for id in self._executors.ids() if id not in self._executors.leaving]
        self._executors.decommission(staying[wanted:])
        return wanted
