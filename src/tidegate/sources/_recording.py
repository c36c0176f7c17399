"""What `Sensors` would send, written to files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from tidegate.errors import PipelineError
from tidegate.sources._folder import Add, Progress, Totals, Volume, write_lines, write_parts
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
) -> Totals:
    """Write the rows of `source` from the first on; its own `rows` does not count.

    Event times start at `source.start`, or at midnight of 1 June 2024. CSV files have a header.
    `malformed` is the share of lines that are broken. A Parquet file may pass its size by 64 k rows.
    """
    if format == "parquet":
        if malformed:
            raise PipelineError("malformed lines need a format with lines: json or csv", step="generate")
        return write_parts(out, ".parquet", volume, partial(_parquet_file, source), progress)
    return write_lines(
        out,
        partial(_lines, source, format),
        volume,
        seed=source.seed,
        malformed=malformed,
        suffix=f".{format}",
        header="id,timestamp,value\n" if format == "csv" else "",
        progress=progress,
    )


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


@contextmanager
def _parquet_file(source: Sensors, file: IO[bytes]) -> Iterator[Add]:
    """With a row group per chunk."""
    import pyarrow.parquet as pq

    def add(first: int, rows: int, room: float) -> int:
        writer.write_batch(_batch(source, first, first + rows))
        return rows

    with pq.ParquetWriter(file, _batch(source, 0, 0).schema) as writer:
        yield add
