"""The executors of one session, by the scheduler in the driver's JVM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.spark.listener import drain_listener_bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Executors:
    """Counts executors, requests more, decommissions some; once Spark is stopped there are none."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.application = str(spark.sparkContext.applicationId)
        """Spark's id of the session."""
        self.leaving: set[str] = set()
        """The ids of those that were told to end, whether they have or not."""

    def ids(self) -> tuple[str, ...]:
        """Of those that live, oldest first; one is listed about half a second before it takes tasks."""
        context = self._scala_context()
        listed = "" if context is None else str(context.getExecutorIds().mkString(" "))
        return tuple(sorted(listed.split(), key=int))

    def ever_registered(self) -> frozenset[str]:
        """The ids of those that live and of those that have ended."""
        context = self._scala_context()
        if context is None:
            return frozenset()
        listed = context.statusStore().executorList(False)
        return frozenset(str(listed.apply(index).id()) for index in range(listed.size()))

    def request_total(self, count: int) -> None:
        """Have the master keep this many, if it has the room; it ends none that is too many."""
        context = self._scala_context()
        if context is not None:
            jvm: Any = self._context._jvm
            anywhere = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
            context.requestTotalExecutors(count, 0, anywhere)

    def decommission(self, ids: Iterable[str]) -> None:
        """Have these executors finish their tasks and end. Those that are leaving are not told again."""
        context = self._scala_context()
        if context is None:
            return
        jvm: Any = self._context._jvm
        why = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("a rescale", jvm.scala.Option.empty())
        for id in ids:
            if id not in self.leaving:
                # False: leave the number that the master keeps to `request_total`.
                context.schedulerBackend().decommissionExecutor(id, why, False, False)
                self.leaving.add(id)

    def _scala_context(self) -> Any:
        java: Any = self._context._jsc
        if java is None or java.sc().isStopped():
            return None
        return java.sc()


def hosts_by_executor(spark: SparkSession) -> dict[str, str]:
    """The executors that live, oldest first, each with its host as Spark calls it. In a local Spark that is
    the driver, under the id `driver`; elsewhere the driver is none of them."""
    context: Any = spark.sparkContext._jsc
    listed = context.sc().statusStore().executorList(True)
    every = [listed.apply(index) for index in range(listed.size())]
    found = {str(each.id()): _host(str(each.hostPort())) for each in every}
    others = sorted((id for id in found if id != "driver"), key=int)
    return {id: found[id] for id in others or found}


def give_up(spark: SparkSession, host: str) -> list[str]:
    """Take the executors on a host for lost, as Spark does by itself after a long silence; which ones."""
    context: Any = spark.sparkContext._jsc
    jvm: Any = spark._jvm
    why = jvm.org.apache.spark.scheduler.ExecutorProcessLost(
        f"{host} is out of reach", jvm.scala.Option.apply(host), False
    )
    found = [id for id, place in hosts_by_executor(spark).items() if place == host and id != "driver"]
    for id in found:
        context.sc().killAndReplaceExecutor(id)
        context.sc().schedulerBackend().removeExecutor(id, why)
    return found


def _host(place: str) -> str:
    """The host of `host:port`; an executor that is about to register its block manager has no port yet."""
    host, _, port = place.rpartition(":")
    return host if port.isdigit() else place


def executor_hosts(spark: SparkSession) -> frozenset[str]:
    """The hosts of the executors and of the driver, by the names that Spark has for them."""
    context: Any = spark.sparkContext._jsc
    places = str(context.sc().getExecutorMemoryStatus().keys().mkString(" "))
    return frozenset(place.rpartition(":")[0] for place in places.split())


def rows_on(spark: SparkSession, executor: str, count: int) -> DataFrame:
    """`count` partitions of one row each that prefer to run on this executor."""
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    # Spark takes a host's name to mean any executor on that host.
    place = jvm.PythonUtils.toSeq([f"executor_nowhere_{executor}"])
    rows = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(str(number), place) for number in range(count)])
    text = jvm.org.apache.spark.sql.Encoders.STRING()
    placed = session.sparkContext().makeRDD(rows, text.clsTag())
    return DataFrame(session.createDataset(placed, text).toDF(), spark)


def executors_of(spark: SparkSession, group: str) -> frozenset[str]:
    """The ids of the executors that ran tasks of a job group whose jobs have ended."""
    drain_listener_bus(spark)
    context: Any = spark.sparkContext._jsc
    store, tracker = context.sc().statusStore(), spark.sparkContext.statusTracker()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [stage for info in infos if info is not None for stage in info.stageIds]
    return frozenset(
        id for stage in stages for id in str(store.executorSummary(stage, 0).keys().mkString(" ")).split()
    )
