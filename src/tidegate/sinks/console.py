"""Rows on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidegate.pipeline.where import refused
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter
from tidegate.spark.frames import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_CELL = 60


@dataclass(frozen=True, slots=True)
class Console(Sink):
    """Print the first `rows` rows of each batch once it is committed.

    A crash between the commit and the print makes a batch appear once more after the restart.
    """

    rows: int = 20

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise refused(f"cannot print {self.rows} rows of a batch", step="Console")

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        return _Writer(self.rows)

    def describe(self) -> str:
        return f"Console ({self.rows} rows)"


class _Writer(SinkWriter):
    def __init__(self, shown: int) -> None:
        self._shown = shown

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        from pyspark.sql import functions as f

        columns = rows.columns
        rows, count = counted(rows)
        # By position: a name may occur twice, or hold a dot.
        named = rows.toDF(*(f"c{index}" for index in range(len(columns))))
        cells = named.select(*(_cell(name, kind).alias(name) for name, kind in named.dtypes))
        # Not `limit`: it would stop early, and the steps before the sink must see the whole batch.
        first = cells.mapInArrow(partial(_first, self._shown), cells.schema).select(
            f.monotonically_increasing_id().alias("place"), "*"
        )
        lines = sorted(first.collect())[: self._shown]
        return {"rows": count(), "columns": columns, "cells": [list(line[1:]) for line in lines]}

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        print(f"batch {batch_id}: {receipt['rows']:,} rows")  # noqa: T201
        if receipt["cells"]:
            for line in _table(receipt["columns"], receipt["cells"]):
                print(line)  # noqa: T201


def _cell(name: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    text = f.hex(name) if kind == "binary" else f.col(name).cast("string")
    return f.substring(f.coalesce(text, f.lit("null")), 1, _CELL)


def _first(limit: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def _table(columns: list[str], lines: list[list[str]]) -> Iterator[str]:
    grid = [[cell.replace("\n", "\\n") for cell in line] for line in (columns, *lines)]
    widths = [max(len(line[index]) for line in grid) for index in range(len(columns))]
    for number, line in enumerate(grid):
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        if number == 0:
            yield "  ".join("-" * width for width in widths)
