"""The executors of one session, by the scheduler in the driver's JVM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.cluster.provider import ExecutorLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVER = "driver"


class Allocation:
    """Counts executors, asks for more, sends some away; once Spark is stopped there are none."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._leaving: set[str] = set()

    @property
    def application(self) -> str:
        """Spark's name of the session."""
        return str(self._context.applicationId)

    def executors(self) -> tuple[ExecutorLine, ...]:
        """Those that live, the oldest first."""
        found = [self._line(summary) for summary in self._summaries(active=True)]
        return tuple(sorted((line for line in found if line.id != _DRIVER), key=lambda line: int(line.id)))

    def ids(self) -> frozenset[str]:
        """The ids of those that live, also of those that are only about to take tasks. Costs little."""
        scheduler = self._scheduler()
        listed = "" if scheduler is None else str(scheduler.getExecutorIds().mkString(" "))
        return frozenset(listed.split())

    def seen(self) -> frozenset[str]:
        """The ids of those that live and of those that lived."""
        return frozenset(str(summary.id()) for summary in self._summaries(active=False))

    def want(self, executors: int) -> None:
        """Have the master keep so many, if it has the room; it ends none that is too many."""
        scheduler = self._scheduler()
        if scheduler is not None:
            jvm: Any = self._context._jvm
            nowhere = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
            scheduler.requestTotalExecutors(executors, 0, nowhere)

    def send_away(self, ids: Iterable[str]) -> None:
        """Have these executors finish their tasks and go. Those that go already are not told again."""
        scheduler = self._scheduler()
        if scheduler is None:
            return
        jvm: Any = self._context._jvm
        why = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("a rescale", jvm.scala.Option.empty())
        for id in ids:
            if id not in self._leaving:
                # How many the master shall keep is said by `want`: this one alone says nothing about it.
                scheduler.schedulerBackend().decommissionExecutor(id, why, False, False)
                self._leaving.add(id)

    def _summaries(self, *, active: bool) -> list[Any]:
        scheduler = self._scheduler()
        if scheduler is None:
            return []
        listed = scheduler.statusStore().executorList(active)
        found = [listed.apply(index) for index in range(listed.size())]
        # For a moment after it has come, an executor is listed without a place.
        return [summary for summary in found if summary.hostPort()]

    def _line(self, summary: Any) -> ExecutorLine:
        id = str(summary.id())
        return ExecutorLine(
            id=id,
            host=str(summary.hostPort()).rpartition(":")[0],
            cores=int(summary.totalCores()),
            tasks=int(summary.activeTasks()),
            leaving=id in self._leaving,
        )

    def _scheduler(self) -> Any:
        java: Any = self._context._jsc
        if java is None:
            return None
        scheduler = java.sc()
        return None if scheduler.isStopped() else scheduler
