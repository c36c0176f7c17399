"""A running streaming query: what the engine asks of it beyond PySpark's own interface.

Spark fixes the read limit of each source when a query starts, keeps the observed metrics of the current batch
to itself until the batch is over, and tells nobody which files it has left for later. All of it
is there on the JVM's side, so this module asks there. Spark is pinned to one minor version because of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.sources.source import Limit, Waiting
from tidegate.spark.checkpoint_files import CheckpointFiles

_SAMPLE = 500
_ENTRY = re.compile(r",(\d+),\d+\)(?=, NewFileEntry\(|\)$)")


class RunningQuery:
    """The JVM's side of a streaming query."""

    def __init__(self, spark: SparkSession, query: StreamingQuery, checkpoint: Path) -> None:
        self._jvm: Any = spark._jvm
        self._execution: Any = query._jsq.streamingQuery()
        self._sources: list[tuple[Any, bool]] = []
        """Each source, and whether it is one in Python; they stay the same while the query runs."""
        self._limits: list[Limit] = []
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
    def _file_sources(self) -> list[Any]:
        sources = self._execution.sources()
        each = [sources.apply(number) for number in range(sources.size())]
        return [source for source in each if source.getClass().getSimpleName() == "FileStreamSource"]

    def limit(self, limits: Sequence[Limit]) -> None:
        """Set what the next batch may take from each source, in the order of the sources."""
        if self._limits == [*limits]:
            return
        if not self._sources:
            sources = self._execution.sources()
            found = [sources.apply(number) for number in range(len(limits))]
            self._sources = [(each, each.getClass().getSimpleName().startswith("Python")) for each in found]
        current = self._execution.uniqueSources()
        for (source, in_python), limit in zip(self._sources, limits, strict=True):
            current = current.updated(source, self._read_limit(limit, in_python=in_python))
        getattr(self._execution, "uniqueSources_$eq")(current)
        self._limits = [*limits]

    def _read_limit(self, limit: Limit, *, in_python: bool) -> Any:
        kind = limit.kind.capitalize()
        if in_python:
            text = json.dumps({"_type": f"ReadMax{kind}", f"max_{limit.kind}": limit.amount})
            package = self._jvm.org.apache.spark.sql.execution.datasources.v2.python
            return package.PythonStreamingSourceReadLimit(text)
        factory = self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        return getattr(factory, f"max{kind}")(limit.amount)


def _left(source: Any) -> Waiting:
    """What a file source has left; of many files the size of some stands for that of all."""
    field = source.getClass().getDeclaredField("unreadFiles")
    field.setAccessible(True)
    entries = field.get(source)
    files = entries.size() if entries is not None else 0
    if not files:
        return Waiting(0, 0)
    # As one text: to ask Java for each field of each entry takes seconds.
    sizes = [int(size) for size in _ENTRY.findall(entries.take(_SAMPLE).toString())]
    return Waiting(files, sum(sizes) * files // max(1, len(sizes)))
