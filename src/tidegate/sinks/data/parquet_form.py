"""Parquet as Spark means it, read and written by Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_ROW_GROUP_BYTES = 32 << 20


def check(schema: StructType, *, what: str) -> None:
    """Raise a SinkError when Arrow has no such columns: it says `what` cannot be done, and the way out."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    for column in schema:
        try:
            to_arrow_schema(StructType([column]), timezone="UTC")
        except PySparkException:
            kind = column.dataType.simpleString()
            raise SinkError(f"files with column {column.name}, which is {kind}, {what}") from None


def arrow_schema(fields: dict[str, Any]) -> pa.Schema:
    """Of columns in Spark's own JSON form. All that is read from files may be null."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromJson(fields).toNullable(), timezone="UTC")


def file_schema(fields: dict[str, Any]) -> pa.Schema:
    """The same, as a file has it: with Spark's own schema beside."""
    return arrow_schema(fields).with_metadata({SPARK_SCHEMA: json.dumps(fields).encode()})


def encoded(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    """A file with the rows of all tables, piece by piece, with one group of rows in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = _Drain()
    with pq.ParquetWriter(sink, schema) as writer:
        waiting: list[pa.Table] = []
        for table in tables:
            waiting.append(table)
            if sum(each.nbytes for each in waiting) >= _ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
                yield from sink.drained()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    yield from sink.drained()


def load(contents: Iterable[pa.Buffer], schema: pa.Schema) -> pa.Table:
    """The rows of files, in their order and in columns of this schema; those that a file lacks are null."""
    return _dataset(contents, schema).to_table()


def batches(content: pa.Buffer, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file, one part after the other."""
    yield from _dataset([content], schema).to_batches()


def _dataset(contents: Iterable[pa.Buffer], schema: pa.Schema) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds

    # Spark writes timestamps in the old 96-bit form, without a zone: they are in UTC.
    form = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    files = [form.make_fragment(pa.BufferReader(content)) for content in contents]
    return ds.FileSystemDataset(files, schema, form)


def written_schema(content: pa.Buffer) -> pa.Schema:
    """Of a file as Spark means it, if Spark or Tidegate has written it; otherwise as Arrow does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = pq.read_schema(pa.BufferReader(content))
    text = (found.metadata or {}).get(SPARK_SCHEMA)
    return found if text is None else arrow_schema(json.loads(text)).with_metadata({SPARK_SCHEMA: text})


class _Drain(io.RawIOBase):
    """Takes what is written, and hands it on."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._size

    def drained(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        return parts
