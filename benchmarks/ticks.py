"""A source that costs next to nothing: Spark's own counter, with the columns that a benchmark asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.sources.source import Limit, Seen, Source, Taken


@dataclass(frozen=True, slots=True)
class Ticks(Source):
    """Batches of exactly `rows` rows `<value, timestamp>`, each batch `millis` later than the one before.

    `columns` are Spark SQL expressions over the two, by name; `timestamp` stays. Never ends.
    """

    rows: int
    columns: tuple[tuple[str, str], ...]
    millis: int = 1000
    event_time: str | None = "timestamp"
    grace: str = "0 seconds"

    countable = True

    def load(self, spark: SparkSession, *, parallelism: int, first_rows: int | None) -> DataFrame:
        stream = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", self.rows)
            .option("numPartitions", parallelism)
            .option("advanceMillisPerBatch", self.millis)
            .option("startTimestamp", 1_700_000_000_000)
            .load()
        )
        # All rows of a batch have one timestamp there; they are spread over the time of the batch.
        micros = f"value % {self.rows} * {self.millis * 1000} div {self.rows}"
        spread = f"timestamp_micros(unix_micros(timestamp) + {micros})"
        named = [f"{text} as {name}" for name, text in self.columns]
        return stream.selectExpr(*named, f"{spread} as timestamp")

    def describe(self) -> str:
        return f"Ticks {self.rows:,} a batch"

    def limit(self, rows: int, taken: Taken | None) -> Limit:
        return Limit("rows", self.rows)

    def seen(self, start: Any, end: Any) -> Seen:
        low = start["offset"] if start else 0
        newest = end["timestamp"] * 1000 - 1
        return Seen(rows=end["offset"] - low, newest=newest, oldest_percent=newest, median=newest)
