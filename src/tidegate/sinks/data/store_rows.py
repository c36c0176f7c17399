"""Data files in an object store as a DataFrame: tasks fetch them, so Spark needs no connector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tidegate.sinks import json_form
from tidegate.sinks.data import parquet_form
from tidegate.sinks.data.store_files import StoreFiles
from tidegate.storage.remote import Remote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LINES = 10_000
"""In one batch on their way to Spark."""


def store_rows(
    url: str, names: Sequence[str], schema: StructType, suffix: str, spark: SparkSession
) -> DataFrame:
    """The rows of these files, all of which end in `suffix`, in no particular order."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    from tidegate.spark.arrow_function import map_in_arrow

    files = spark.createDataFrame([(name,) for name in names], StructType().add("file", StringType()))
    files = files.repartition(min(len(names), spark.sparkContext.defaultParallelism * 4))
    if suffix == "parquet":  # All that is read from files may be null.
        return map_in_arrow(files, ["file"], _Rows(url, schema.jsonValue()), schema.toNullable())
    lines = map_in_arrow(files, ["file"], _Lines(url), StructType().add("line", StringType()))
    options = {**json_form.LINES, "mode": "FAILFAST"}
    return lines.select(f.from_json("line", schema, options).alias("row")).select("row.*")


@lru_cache(maxsize=16)
def store_files(url: str) -> StoreFiles:
    """Kept by a Python worker from batch to batch, with its connections."""
    return StoreFiles(Remote(url))


@dataclass(frozen=True)
class _Rows:
    """What a task does: read the Parquet files that it gets the names of."""

    url: str
    fields: dict[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = parquet_form.arrow_schema(self.fields)
        for name in _names(batches):
            yield from parquet_form.batches(store_files(self.url).fetch(name), schema)


@dataclass(frozen=True)
class _Lines:
    """What a task does: read the lines of the files that it gets the names of."""

    url: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for name in _names(batches):
            lines = store_files(self.url).fetch(name).to_pybytes().decode().split("\n")[:-1]
            for start in range(0, len(lines), _LINES):
                part = pa.array(lines[start : start + _LINES], pa.string())
                yield pa.RecordBatch.from_arrays([part], ["line"])


def _names(batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
