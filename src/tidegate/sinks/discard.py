"""A sink that keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter
from tidegate.spark.frames import compute

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
        return {"rows": compute(rows)}

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        pass
