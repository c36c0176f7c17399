"""The Spark of a run, and the cluster behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tidegate.cluster.local import InProcess
from tidegate.cluster.provider import Cluster
from tidegate.cluster.settings import open_cluster
from tidegate.config import Config
from tidegate.pipeline.plan import Plan
from tidegate.spark import session


@contextmanager
def opened(plan: Plan, config: Config) -> Iterator[tuple[SparkSession, Cluster]]:
    """The session of this process if it has one, else one that ends with the run; and where its tasks run."""
    if session.is_running():
        with session.lent(config.spark.conf) as spark, InProcess(config.spark.master) as cluster:
            cluster.attach(spark)
            yield spark, cluster
        return
    packages = {p for s in plan.sources for p in s.source.packages} | {
        p for s in plan.sinks for p in s.sink.packages
    }
    with open_cluster(config.cluster, master=config.spark.master) as cluster:
        spark = session.start(
            f"tidegate {plan.name}",
            master=cluster.master,
            driver_memory=config.spark.driver_memory,
            packages=packages,
            conf={**cluster.conf, **config.spark.conf},
        )
        try:
            cluster.attach(spark)
            yield spark, cluster
        finally:
            spark.stop()
