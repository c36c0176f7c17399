"""What `Sensors` would send, written to files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tidegate.errors import PipelineError
from tidegate.sources._folder import LineFile, Progress, Volume, Written, spoiled, write_parts
from tidegate.sources.sensors import Sensors

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["json", "csv", "parquet"]

# Midnight, 1 June 2024, UTC: some moment, but always the same.
FIRST_MICROS = 1_717_200_000_000_000


def write_sensors(
    source: Sensors,
    out: str | Path,
    volume: Volume,
    *,
    format: Format = "json",
    malformed: float = 0.0,
    progress: Progress | None = None,
) -> Written:
    """Write the rows of `source` from the first on; its own `rows` does not count.

    Event times start at `source.start`, or at midnight of 1 June 2024. CSV files have a header.
    `malformed` is the share of lines that are broken. A Parquet file may pass its size by 64 k rows.
    """
    if format not in get_args(Format):
        raise PipelineError(f"format must be one of {', '.join(get_args(Format))}, not {format!r}")
    if format == "parquet":
        if malformed:
            raise PipelineError("malformed lines need a format with lines: json or csv", step="generate")
        return write_parts(out, ".parquet", volume, partial(_ParquetFile, source=source), progress)
    header = "id,timestamp,value\n" if format == "csv" else ""
    lines = spoiled(partial(_lines, source, format), malformed, source.seed)
    return write_parts(out, f".{format}", volume, partial(LineFile, lines=lines, header=header), progress)


def _batch(source: Sensors, first: int, last: int) -> pa.RecordBatch:
    start = source.first_micros
    return source.batch(first, last, start=FIRST_MICROS if start is None else start)


def _lines(source: Sensors, format: str, first: int, last: int) -> pa.StringArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    id_, at, value = (column.cast(pa.string()) for column in _batch(source, first, last).columns)
    if format == "csv":
        return pc.binary_join_element_wise(id_, ",", at, ",", value, "\n", "")
    return pc.binary_join_element_wise('{"id":', id_, ',"timestamp":"', at, '","value":', value, "}\n", "")


class _ParquetFile:
    """A Parquet file with a row group per chunk."""

    def __init__(self, path: Path, source: Sensors) -> None:
        self.size = 0
        self._path = path
        self._source = source
        self._writer: Any = None

    def __enter__(self) -> _ParquetFile:
        self._file = self._path.open("wb")
        return self

    def __exit__(self, *failure: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.close()

    def add(self, first: int, rows: int, room: int | None) -> int:
        import pyarrow.parquet as pq

        batch = _batch(self._source, first, first + rows)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.size = self._file.tell()
        return rows
