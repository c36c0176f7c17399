"""Executors do a small job first, so that no batch waits for their JVM and their Python to warm up."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

from tidegate.spark.executors import Executors, executors_of, rows_on
from tidegate.spark.reasons import reason

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

WARM_UP = "warm-up"
"""The pool of the jobs that warm up executors; `pools.xml` has it come first."""
_POLL = 0.1
"""Seconds between two checks. An executor is listed about half a second before it takes tasks: the job has to
be there by then."""
_PAUSE = 2.0
"""Seconds until the next check after one that failed."""
_TRIES = 10
"""How often a warm-up is sent: its place is a preference, and a slow executor misses its turn."""
_OF_TASKS = ("tidegate.operators.", "tidegate.sources.", "tidegate.translation.task")


class Warming:
    """Warms up each executor that is there or comes. What goes wrong with that is logged and no more."""

    def __init__(self, spark: SparkSession, executors: Executors) -> None:
        self._spark, self._executors = spark, executors
        self._cores = int(spark.sparkContext.getConf().get("spark.executor.cores", "1"))
        self._known = set[str]()
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._warm_new, name="warming", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """Watch no longer. May be called again."""
        self._closing.set()
        self._watch.join()

    def _warm_new(self) -> None:
        while not self._closing.wait(_POLL):
            try:
                new = {*self._executors.ids()} - self._known
            except Exception as error:
                # Spark may be stopping just now.
                log.info("new executors cannot be looked for: %s", reason(error))
                self._closing.wait(_PAUSE)
                continue
            for id in new:
                # All at once: one that waited for the others would have tasks by then.
                threading.Thread(target=self._warm, args=(id,), name=f"warming-{id}", daemon=True).start()
            self._known |= new

    def _warm(self, executor: str) -> None:
        for _ in range(_TRIES):
            if warm_up(self._spark, executor, self._cores) or self._closing.wait(_PAUSE):
                return
            if executor not in self._executors.ids():
                return


def warm_up(spark: SparkSession, executor: str, cores: int) -> bool:
    """Run a task on each slot of an executor: it starts a Python worker and imports what batches need.

    False when the tasks went elsewhere, or failed. Sets the pool and the group of the jobs of this thread.
    Does not raise.
    """
    began, context = time.monotonic(), spark.sparkContext
    group = f"{WARM_UP}-{executor}-{uuid4().hex}"
    try:
        context.setLocalProperty("spark.scheduler.pool", WARM_UP)
        context.setJobGroup(group, f"{WARM_UP} of executor {executor}")
        rows = rows_on(spark, executor, cores)
        rows.mapInArrow(_task(_modules()), rows.schema).collect()
        if executor not in executors_of(spark, group):
            log.info("executor %s was not warmed up: the task ran on another one", executor)
            return False
    except Exception as error:
        log.info("executor %s was not warmed up: %s", executor, reason(error))
        return False
    log.info("executor %s is warmed up after %.1f s", executor, time.monotonic() - began)
    return True


def _modules() -> tuple[str, ...]:
    """What the tasks of batches import: they are given operators and sources that the driver has, and pandas
    is loaded by PyArrow when it first meets a Python value."""
    return "pandas", *sorted(name for name in sys.modules if name.startswith(_OF_TASKS))


def _task(modules: Iterable[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Imports these modules and hands its rows on. The Python worker that has done it gets the next tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from importlib import import_module

        for name in modules:
            import_module(name)
        yield from batches

    return run
