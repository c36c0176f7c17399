"""Merging small data files: which ones, and how."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.disk import DISK
from tidegate.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_ROW_GROUP_BYTES = 64 << 20


def runs(sizes: Iterable[tuple[str, int]], target: int) -> Iterator[list[str]]:
    """Neighbours to merge into one file each of about `target` bytes, from names and sizes in their order.

    A file of at least half of that stays as it is.

    >>> list(runs([("a", 1), ("b", 2), ("c", 9), ("d", 1), ("e", 4), ("f", 4), ("g", 3), ("h", 1)], 8))
    [['a', 'b'], ['d'], ['g', 'h']]
    """
    run: list[str] = []
    total = 0
    for name, size in sizes:
        small = 2 * size < target
        if run and (not small or total >= target):
            yield run
            run, total = [], 0
        if small:
            run.append(name)
            total += size
    if run:
        yield run


def check(schema: StructType) -> None:
    """Raise a SinkError when Parquet files of these columns cannot be merged."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    for column in schema:
        try:
            to_arrow_schema(StructType([column]), timezone="UTC")
        except PySparkException:
            raise SinkError(
                f"files with column {column.name}, which is {column.dataType.simpleString()}, cannot be "
                "merged; cast it, or leave out compact_to"
            ) from None


def alike(files: Iterable[Path]) -> Iterator[list[Path]]:
    """Neighbours with the same columns and format."""
    for _, group in groupby(files, _kind):
        yield list(group)


def merge(files: Iterable[Path], target: Path, *, proceed: Callable[[], None]) -> None:
    """Write the rows of files that are alike to a new file, in their order and durably.

    `proceed` is called between files, and may raise.
    """
    if target.suffix == ".json":
        with target.open("xb") as whole:
            for path in files:
                proceed()
                with path.open("rb") as part:
                    shutil.copyfileobj(part, whole)
    else:
        _merge_parquet(files, target, proceed)
    DISK.sync_file(target)


def _merge_parquet(files: Iterable[Path], target: Path, proceed: Callable[[], None]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: pq.ParquetWriter | None = None
    waiting: list[pa.Table] = []
    try:
        for path in files:
            proceed()
            waiting.append(_load(path))
            if writer is None:
                writer = pq.ParquetWriter(target, waiting[0].schema)
            if sum(table.nbytes for table in waiting) >= _ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
        if writer is not None and waiting:
            writer.write_table(pa.concat_tables(waiting))
    finally:
        if writer is not None:
            writer.close()


def _load(path: Path) -> pa.Table:
    """A file as Spark means it: with timestamps in UTC, and Spark's own schema beside."""
    import json

    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    text = (pq.read_schema(path).metadata or {}).get(SPARK_SCHEMA)
    if text is None:
        return pq.read_table(path, partitioning=None)
    schema = to_arrow_schema(StructType.fromJson(json.loads(text)).toNullable(), timezone="UTC")
    # Spark writes timestamps in the old 96-bit form, without a zone: they are in UTC.
    rows = pq.read_table(path, schema=schema, partitioning=None, coerce_int96_timestamp_unit="us")
    return rows.replace_schema_metadata({SPARK_SCHEMA: text})


def _kind(path: Path) -> tuple[str, object]:
    if path.suffix == ".json":
        return path.suffix, None
    import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    return path.suffix, (schema.metadata or {}).get(SPARK_SCHEMA) or schema.to_string()
