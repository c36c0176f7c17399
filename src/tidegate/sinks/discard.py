"""A sink that keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Discard(Sink):
    """Compute every row, then drop it: for measuring what comes before the sink."""

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        return _Writer()

    def describe(self) -> str:
        return "Discard"


class _Writer(SinkWriter):
    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        # Spark's noop sink cannot say how many rows it took, and observing them costs a fifth of the batch.
        return {"rows": rows._jdf.queryExecution().toRdd().count()}

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        pass
