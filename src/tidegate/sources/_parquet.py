"""Parquet files read in a Spark task, file by file, so that a damaged one is a row and not a failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.sources._names import is_remote, local_path
from tidegate.sources.source import RAW, REASON

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS_PER_BATCH = 1 << 16


def read_files(target: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: batches with a column `path` in, the rows of these files out.

    `target` names the columns and types that come out. RAW and REASON, which come last, are for the path and
    the reason of a file that cannot be read on, and null in all other rows.
    """
    for batch in batches:
        for path in batch.column("path").to_pylist():
            yield from _rows(target, path)


def _rows(target: pa.Schema, path: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    read = 0
    try:
        with _opened(path) as file:
            names = [name for name in target.names[:-2] if name in file.schema_arrow.names]
            if not names:
                raise pa.ArrowInvalid("it has none of the columns")
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=names):
                found = batch.schema.names
                columns = [
                    batch.column(found.index(field.name)).cast(field.type)
                    if field.name in found
                    else pa.nulls(batch.num_rows, field.type)
                    for field in target
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=target)
                read += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        # A disk or network that fails is no property of the file: the task must be tried again.
        if getattr(error, "errno", None) is not None:
            raise
        problem = str(error).strip().split("\n")[0]
        reason = f"not readable after {read} rows: {problem}"
        yield pa.RecordBatch.from_pylist([{RAW: path, REASON: reason}], schema=target)


def count_rows(files: Iterable[Path]) -> int | None:
    """Rows of these files by their footers; None when not one of them has a footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = None
    for file in files:
        with suppress(pa.ArrowException, OSError):
            rows = (rows or 0) + pq.read_metadata(file).num_rows
    return rows


def _opened(path: str) -> pq.ParquetFile:
    import pyarrow.parquet as pq
    from pyarrow import fs

    if is_remote(path):
        filesystem, name = fs.FileSystem.from_uri(path.replace("s3a://", "s3://"))
    else:
        filesystem, name = fs.LocalFileSystem(), str(local_path(path))
    return pq.ParquetFile(name, filesystem=filesystem)
