"""Tasks on the hosts where they are wanted.

Spark runs the task of a shuffled partition wherever a slot is free first. It has a preference only for rows
that lie somewhere; so to the rows of a partition are added those of an empty one that lies on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.spark.rdd_scan import frame_of, scan

_VOTES = 6
"""The place of most rows is preferred. Spark names each executor that holds a fifth or more of a shuffled
partition: that is five at most, and they may all be on one host."""


class PreferredLocations:
    """A host for each of so many partitions."""

    def __init__(self, spark: SparkSession, hosts: Sequence[str]) -> None:
        """The names of hosts as Spark has them. An empty one: any host will do."""
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._context = session.sparkContext()
        self._count = len(hosts)
        self._union = jvm.org.apache.spark.rdd.SQLPartitioningAwareUnionRDD
        seq, places = jvm.PythonUtils.toSeq, jvm.java.util.HashMap()
        for partition, host in enumerate(hosts):
            if host:
                places.put(partition, seq([host] * _VOTES))
        empty = jvm.org.apache.spark.rdd.ParallelCollectionRDD(
            self._context,
            seq([]),
            self._count,
            jvm.PythonUtils.toScalaMap(places),
            jvm.org.apache.spark.sql.Encoders.STRING().clsTag(),
        )
        # A list: another RDD comes before it in each batch.
        self._empty = seq([empty]).toList()
        self._kind: Any = None

    def of(self, frame: DataFrame) -> DataFrame:
        """The same rows in the same partitions, of which there must be so many. Not for streaming frames.

        A task prefers its host; if no slot is free there, it goes elsewhere.
        """
        jdf: Any = frame._jdf
        execution = jdf.queryExecution()
        rows = execution.toRdd()
        if self._kind is None:
            self._kind = rows.elementClassTag()
        both = getattr(self._empty, "$colon$colon")(rows)
        united = self._union(self._context, both, self._count, self._kind)
        return frame_of(scan(united, frame, execution.analyzed().output()), frame)
