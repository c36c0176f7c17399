"""A running streaming query: what the engine asks of it beyond PySpark's own interface.

Spark fixes the read limit of each source and its partitions when a query starts, keeps the observed metrics
of the current batch to itself until the batch is over, and tells nobody which files it has left for later.
All of it is there on the JVM's side, so this module asks there. Spark is pinned to one minor version because
of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.sources.source import Limit, Waiting
from tidegate.sources.split_limit import split_limit
from tidegate.spark.checkpoint_files import CheckpointFiles

FILE_PARTITIONS = "spark.sql.files.minPartitionNum"
"""The setting for the number of partitions in which files are read."""
_SAMPLE = 500
_ENTRY = re.compile(r",(\d+),\d+\)(?=, NewFileEntry\(|\)$)")


class RunningQuery:
    """The JVM's side of a streaming query."""

    def __init__(self, spark: SparkSession, query: StreamingQuery, checkpoint: Path) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._execution: Any = query._jsq.streamingQuery()
        self._change = Lock()
        self._limits: list[Limit] = []
        self._partitions: int | None = None
        """Into how many partitions each source has been told to split its cuts; None: not yet."""
        self._split_by_limit: Collection[int] = ()
        self.checkpoint = CheckpointFiles(checkpoint)
        self.run_id = str(query.runId)

    def observed(self) -> dict[str, dict[str, Any]]:
        """The metrics observed in the batch that is running: name -> measure -> value."""
        metrics = self._execution.lastExecution().observedMetrics()
        names = metrics.keysIterator()
        found = {}
        while names.hasNext():
            name = names.next()
            found[name] = json.loads(metrics.apply(name).json())
        return found

    def waiting(self) -> Waiting | None:
        """What the file sources have found in their folders and left for later batches; None without any.

        Spark keeps at most 10,000 files in mind, and none when they are less than a fifth of a batch.
        """
        found = [_left(source) for source in self._file_sources]
        return Waiting(sum(w.files for w in found), sum(w.bytes for w in found)) if found else None

    @cached_property
    def _sources(self) -> list[tuple[Any, str]]:
        """Each source and its class; they stay the same while the query runs."""
        sources = self._execution.sources()
        each = [sources.apply(number) for number in range(sources.size())]
        return [(source, source.getClass().getSimpleName()) for source in each]

    @property
    def _file_sources(self) -> list[Any]:
        return [source for source, kind in self._sources if kind == "FileStreamSource"]

    def limit(self, limits: Sequence[Limit]) -> None:
        """Set what the next batch may take from each source, in the order of the sources."""
        with self._change:
            if self._limits != [*limits]:
                self._limits = [*limits]
                self._set_limits()

    def split(self, partitions: int, *, by_limit: Collection[int]) -> None:
        """Have each source split the cut of the next batch into about so many partitions. `by_limit`: the
        sources, by number, that are told with their limits; Spark is told of files and Kafka. Others stay."""
        with self._change:
            if self._partitions == partitions:
                return
            self._partitions, self._split_by_limit = partitions, by_limit
            self._spark.conf.set(FILE_PARTITIONS, partitions)
            for source, kind in self._sources:
                if kind == "KafkaMicroBatchStream":
                    _split_offsets(source, self._jvm.scala.Some(partitions))
            if by_limit:
                self._set_limits()

    def _set_limits(self) -> None:
        current = self._execution.uniqueSources()
        for number, (source, kind) in enumerate(self._sources):
            limit = self._limits[number] if self._limits else None
            if self._partitions is not None and number in self._split_by_limit:
                found = self._in_python(split_limit(limit.amount if limit else None, self._partitions))
            elif limit is None:
                continue
            else:
                found = self._read_limit(limit, in_python=kind.startswith("Python"))
            current = current.updated(source, found)
        getattr(self._execution, "uniqueSources_$eq")(current)

    def _read_limit(self, limit: Limit, *, in_python: bool) -> Any:
        kind = limit.kind.capitalize()
        if in_python:
            return self._in_python({"_type": f"ReadMax{kind}", f"max_{limit.kind}": limit.amount})
        factory = self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        return getattr(factory, f"max{kind}")(limit.amount)

    def _in_python(self, limit: dict[str, Any]) -> Any:
        package = self._jvm.org.apache.spark.sql.execution.datasources.v2.python
        return package.PythonStreamingSourceReadLimit(json.dumps(limit))


def _split_offsets(source: Any, partitions: Any) -> None:
    """Have a Kafka source split the offsets of a cut into at least so many ranges, if it has so many."""
    reader = _field(source, "kafkaOffsetReader").get(source)
    calculator = _field(reader, "rangeCalculator").get(reader)
    for each in (reader, calculator):
        _field(each, "minPartitions").set(each, partitions)


def _field(owner: Any, name: str) -> Any:
    """A private field, of the class of an object."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


def _left(source: Any) -> Waiting:
    """What a file source has left; of many files the size of some stands for that of all."""
    entries = _field(source, "unreadFiles").get(source)
    files = entries.size() if entries is not None else 0
    if not files:
        return Waiting(0, 0)
    # As one text: to ask Java for each field of each entry takes seconds.
    sizes = [int(size) for size in _ENTRY.findall(entries.take(_SAMPLE).toString())]
    return Waiting(files, sum(sizes) * files // max(1, len(sizes)))
