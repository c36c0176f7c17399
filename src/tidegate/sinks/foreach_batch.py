"""A user's own function as a sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter
from tidegate.spark.frames import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ForEachBatch(Sink):
    """Call `function(rows, batch_id)` with the rows of each batch.

    The function runs before the batch is committed, and runs again with the same `batch_id` and the same
    rows when the batch is tried again: at least once. Write under the batch id (a folder, a key, a row
    that is replaced) and the effect is that of once. It must read all of `rows`, and may do so more than
    once: each time is a Spark job of its own. What it returns is ignored; what it raises fails the batch.
    """

    function: Callable[[DataFrame, int], object]
    reads_all = False
    stages = False

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        return _Writer(self.function)

    def describe(self) -> str:
        return f"ForEachBatch {getattr(self.function, '__qualname__', repr(self.function))}"


class _Writer(SinkWriter):
    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        self._function = function

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        rows, count = counted(rows)
        self._function(rows, attempt.batch_id)
        return {"rows": count()}

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        pass
