"""Parquet files read in a Spark task, file by file, so that a damaged one is a row and not a failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.sources._names import is_remote, local_path

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType

_ROWS_PER_BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class ParquetReader:
    """A function for `mapInArrow`: batches with a column `path` in, the rows of these files out.

    `target` names the columns and types that come out; the last two are for the path and the reason
    of a file that cannot be read on, and null in all other rows.
    """

    target: pa.Schema

    @staticmethod
    def of(schema: StructType) -> ParquetReader:
        """The reader whose rows have this schema; its last two columns are path and reason."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return ParquetReader(to_arrow_schema(schema, timezone="UTC", prefers_large_types=False))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from self._rows(path)

    def _rows(self, path: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        read = 0
        try:
            with _opened(path) as file:
                names = [name for name in self.target.names[:-2] if name in file.schema_arrow.names]
                if not names:
                    raise pa.ArrowInvalid("it has none of the columns")
                for batch in file.iter_batches(_ROWS_PER_BATCH, columns=names):
                    yield self._fitted(batch)
                    read += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            # A disk or network that fails is no property of the file: the task must be tried again.
            if getattr(error, "errno", None) is not None:
                raise
            problem = str(error).strip().split("\n")[0]
            yield self._failed(path, f"not readable after {read} rows: {problem}")

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        names = batch.schema.names
        columns = [
            batch.column(names.index(field.name)).cast(field.type)
            if field.name in names
            else pa.nulls(batch.num_rows, field.type)
            for field in self.target
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def _failed(self, path: str, reason: str) -> pa.RecordBatch:
        import pyarrow as pa

        *fields, _, _ = self.target
        columns = [pa.nulls(1, field.type) for field in fields]
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array([path]), pa.array([reason])], schema=self.target
        )


def count_rows(files: Iterable[Path]) -> int | None:
    """Rows of these files by their footers; None when not one of them has a footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = None
    for file in files:
        with suppress(pa.ArrowException, OSError):
            rows = (rows or 0) + pq.read_metadata(file).num_rows
    return rows


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    import pyarrow.parquet as pq
    from pyarrow import fs

    if is_remote(path):
        filesystem, name = fs.FileSystem.from_uri(path.replace("s3a://", "s3://"))
    else:
        filesystem, name = fs.LocalFileSystem(), str(local_path(path))
    with filesystem.open_input_file(name) as source, pq.ParquetFile(source) as file:
        yield file
