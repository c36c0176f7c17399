"""The Spark of a run, and the cluster behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from pyspark.sql import SparkSession

from tidegate.cluster.authentication import check_session, spark_settings
from tidegate.cluster.local import InProcess
from tidegate.cluster.provider import Cluster
from tidegate.cluster.settings import open_cluster
from tidegate.cluster.warming import warm_up
from tidegate.config import Config
from tidegate.errors import QueryError
from tidegate.pipeline.keyed_step import KeyedStep
from tidegate.pipeline.plan import Plan
from tidegate.spark import class_archive, session

_LAST_MOMENT = 0.5
"""Seconds that a Java which answers no more gets to end."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Where the tasks of a run are done."""

    spark: SparkSession
    cluster: Cluster
    warming: threading.Thread | None = None
    """Starts the Python workers while the rest of the start goes on."""

    def wait_until_warm(self) -> None:
        """Wait for the Python workers: until they run, the rows of an open source would only pile up."""
        if self.warming is not None:
            self.warming.join()


@contextmanager
def opened(plan: Plan, config: Config) -> Iterator[Compute]:
    """The session of this process if it has one, else one that ends with the run; and where its tasks run."""
    if session.is_running():
        with session.lent(config.spark.conf) as spark, InProcess(config.spark.master) as cluster:
            conf = dict(spark.sparkContext.getConf().getAll())
            check_session(conf["spark.master"], config.security, conf)
            cluster.attach(spark)
            yield Compute(spark, cluster)
        return
    packages = {p for s in plan.sources for p in s.source.packages} | {
        p for s in plan.sinks for p in s.sink.packages
    }
    authentication = spark_settings(config.spark.master, config.security, config.spark.conf)
    with open_cluster(config.cluster, master=config.spark.master) as cluster:
        importing = threading.Thread(target=import_operators, args=(plan,), name="importing", daemon=True)
        importing.start()
        spark = session.start(
            f"tidegate {plan.name}",
            master=cluster.master,
            driver_memory=config.spark.driver_memory,
            packages=packages,
            conf={**authentication, **cluster.conf, **config.spark.conf},
        )
        try:
            importing.join()
            cluster.attach(spark)
            compute = Compute(spark, cluster, warming(spark) if isinstance(cluster, InProcess) else None)
            yield compute
            compute.wait_until_warm()
            class_archive.keep(spark)
        except Exception as error:
            if how := session.ended(patience=_LAST_MOMENT):
                raise QueryError(
                    f"Spark's Java process {how}; if the machine ran short of memory, free some or give "
                    "Spark less (spark.driver_memory). Start the pipeline again to resume after its last "
                    "batch"
                ) from error
            raise
        finally:
            session.stop(spark)


def warming(spark: SparkSession) -> threading.Thread:
    """Start the Python workers of a local Spark, and have them import what tasks need."""
    slots = spark.sparkContext.defaultParallelism
    thread = threading.Thread(target=warm_up, args=(spark, "driver", slots), name="warming", daemon=True)
    thread.start()
    return thread


def import_operators(plan: Plan) -> None:
    """While Java starts: workers that warm up import what this process has."""
    for step in plan.steps:
        if isinstance(step, KeyedStep):
            import_module(step.operator)
