"""Writing an attempt at a batch where nobody reads it yet: by Spark's own writer into a folder, by an Arrow
function in the tasks into an object store."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import SinkError
from tidegate.sinks import json_form
from tidegate.sinks.committed import rows_in
from tidegate.sinks.data import parquet_form
from tidegate.sinks.data.data_files import DataFiles
from tidegate.sinks.data.folder_files import FolderFiles
from tidegate.sinks.data.store_files import StoreFiles
from tidegate.sinks.data.store_rows import store_files
from tidegate.sinks.sink import Attempt
from tidegate.spark.frames import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Format: TypeAlias = Literal["parquet", "json"]

_NO_MARKER = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
_FILE_BYTES = 256 << 20
"""Tasks begin another file when one has about this size, so that whoever reads it can fetch all of it."""


@dataclass(frozen=True, slots=True)
class Written:
    """What an attempt has written."""

    files: list[str]
    """Their names within the attempt."""
    rows: int


class Staging(ABC):
    @abstractmethod
    def check(self, rows: DataFrame) -> None:
        """Raise a SinkError or Spark's own error when such rows cannot be written."""

    @abstractmethod
    def write(self, rows: DataFrame, attempt: Attempt) -> Written:
        """Run the Spark job; what it has written outlives a crash."""


def staging(files: DataFiles, file_format: Format, *, remote: bool) -> Staging:
    """The one that fits a place. `remote`: executors may be on other machines."""
    if isinstance(files, FolderFiles):
        return BySpark(files, file_format, remote=remote)
    assert isinstance(files, StoreFiles)
    return ByTasks(files, file_format)


class BySpark(Staging):
    def __init__(self, files: FolderFiles, file_format: Format, *, remote: bool) -> None:
        self._files = files
        self._format = file_format
        self._remote = remote

    def check(self, rows: DataFrame) -> None:
        # Spark says what it cannot write only when it writes: so let it write no rows, elsewhere.
        folder = self._files.staging / f".check-{uuid4().hex}"
        try:
            self._save(rows.sparkSession.createDataFrame([], rows.schema), str(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, rows: DataFrame, attempt: Attempt) -> Written:
        folder = self._files.staging / str(attempt)
        # Executors of other machines may see another folder under this name; local ones cannot.
        rows, written = counted(rows) if self._remote else (rows, None)
        self._save(rows, str(folder))
        counts = {part: rows_in(part.name, DISK.map(part)) for part in sorted(folder.glob("part-*"))}
        found = sum(counts.values())
        if written is not None and found < written():
            raise SinkError(
                f"executors wrote {written()} rows of {attempt}, but the driver finds {found} in {folder}: "
                "use a folder that the driver and all executors share, or an object store"
            )
        # Spark writes a file even for a partition without rows.
        files = [part for part, count in counts.items() if count]
        # The ledger must never name files that a power cut has lost.
        for file in files:
            DISK.sync_file(file)
        for place in (folder, folder.parent):
            DISK.sync_folder(place)
        return Written([part.name for part in files], found)

    def _save(self, rows: DataFrame, folder: str) -> None:
        options = json_form.LINES if self._format == "json" else {}
        rows.write.format(self._format).options(**options, **_NO_MARKER).save(folder)


class ByTasks(Staging):
    def __init__(self, files: StoreFiles, file_format: Format) -> None:
        self._url = files.place
        self._format = file_format

    def check(self, rows: DataFrame) -> None:
        names = [name.lower() for name in rows.columns]
        if not names:
            raise SinkError("rows without columns cannot be written: the schema is empty")
        if twice := {name for name in names if names.count(name) > 1}:
            raise SinkError(f"column {min(twice)} already exists: two that differ in case only are one")
        parquet_form.check(rows.schema, what="cannot be written to an object store; cast it")

    def write(self, rows: DataFrame, attempt: Attempt) -> Written:
        from pyspark.sql import functions as f
        from pyspark.sql.types import LongType, StringType, StructType

        from tidegate.spark.arrow_function import map_in_arrow

        fields = rows.schema.jsonValue()
        if self._format == "json":
            rows = rows.select(f.to_json(f.struct("*"), json_form.LINES).alias("line"))
        answer = StructType().add("file", StringType()).add("rows", LongType())
        write = _Write(self._url, attempt, self._format, fields, _FILE_BYTES)
        found = map_in_arrow(rows, rows.columns, write, answer).collect()
        return Written(sorted(row.file for row in found), sum(row.rows for row in found))


@dataclass(frozen=True)
class _Write:
    """What a task does: write the rows of its partition, and answer with names and numbers of rows.

    A task that is tried again, or runs twice, writes under other names; only those that Spark counts are
    answered.
    """

    url: str
    attempt: Attempt
    format: Format
    fields: dict[str, Any]
    file_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        place = store_files(self.url)
        rest = (batch for batch in batches if batch.num_rows)
        for number, first in enumerate(rest):
            part = f"{context.partitionId():05d}-{number:03d}-{uuid4().hex[:8]}.{self.format}"
            storage, name = place.staged_in(self.attempt, part)
            file = _File(chain([first], rest), self.file_bytes)
            storage.write(name, self._encoded(file))
            answer = {"file": [part], "rows": pa.array([file.rows], pa.int64())}
            yield pa.RecordBatch.from_pydict(answer)

    def _encoded(self, file: _File) -> Iterator[bytes]:
        if self.format == "json":
            return file.through(map(_lines, file))
        import pyarrow as pa

        schema = parquet_form.file_schema(self.fields)
        tables = (pa.Table.from_batches([batch]).cast(schema) for batch in file)
        return file.through(parquet_form.encoded(tables, schema))


class _File:
    """The rows of one file, which ends when it is large enough."""

    def __init__(self, batches: Iterator[pa.RecordBatch], most_bytes: int) -> None:
        self._batches = batches
        self._most_bytes = most_bytes
        self._bytes = 0
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._bytes < self._most_bytes and (batch := next(self._batches, None)) is not None:
            self.rows += batch.num_rows
            yield batch

    def through(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._bytes += len(part)
            yield part


def _lines(batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa
    import pyarrow.compute as pc

    nothing, end = pa.scalar("", pa.large_string()), pa.scalar("\n", pa.large_string())
    lines = pc.binary_join_element_wise(batch.column(0).cast(pa.large_string()), nothing, end)
    ends = memoryview(lines.buffers()[1]).cast("q")
    content: bytes = lines.buffers()[2].slice(0, ends[len(lines)]).to_pybytes()
    return content
