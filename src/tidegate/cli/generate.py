"""`tidegate generate`: input data of any size, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate import units
from tidegate.cli.options import application
from tidegate.errors import ConfigError
from tidegate.view.figures import amount
from tidegate.view.progress import progress

if TYPE_CHECKING:
    from tidegate.sources._folder import Totals, Volume

app = application("generate", "Write input data of any size.")

_DEFAULT_ROWS = 100_000

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to; existing files are kept.")]
Rows = Annotated[int | None, typer.Option(help=f"How many rows to write; {_DEFAULT_ROWS:,} without --size.")]
Size = Annotated[str | None, typer.Option(help="How many bytes to write instead of rows, like '200 MB'.")]
Files = Annotated[int, typer.Option(min=1, help="How many files to write.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same rows.")]
Malformed = Annotated[float, typer.Option(min=0, max=1, help="Share of malformed lines, 0 to 1.")]


class Format(StrEnum):
    """How sensor rows are written."""

    json = "json"
    csv = "csv"
    parquet = "parquet"


SensorCount = Annotated[int, typer.Option(min=1, help="How many sensors there are.")]
Rate = Annotated[float | None, typer.Option(help="Rows per second of event time, of all sensors together.")]
Start = Annotated[str | None, typer.Option(help="Event time of the first row, like 2025-01-31T12:00:00.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of the files.")]


def _lines_command(module: str, function: str) -> Callable[..., None]:
    """A command that writes the lines that a function makes of a seed and two row numbers."""

    def command(
        out: Out,
        rows: Rows = None,
        size: Size = None,
        files: Files = 10,
        seed: Seed = 0,
        malformed: Malformed = 0.0,
    ) -> None:
        from tidegate.sources._folder import write_lines

        lines = partial(getattr(import_module(module), function), seed)
        write = partial(write_lines, out, lines, seed=seed, malformed=malformed)
        _write(write, out, _volume(rows, size, files))

    return command


app.command(
    "wikipedia", help="Write changes like those of Wikipedia, as JSON lines, for the source `Wikipedia`."
)(_lines_command("tidegate.sources._changes", "changes"))
app.command("server-names", help="Write ids and server names, as JSON lines, for the source `ServerNames`.")(
    _lines_command("tidegate.sources.wikipedia", "server_lines")
)


@app.command()
def sensors(
    out: Out,
    rows: Rows = None,
    size: Size = None,
    files: Files = 10,
    seed: Seed = 0,
    malformed: Malformed = 0.0,
    sensors: SensorCount = 100_000,
    rate: Rate = None,
    start: Start = None,
    format: FormatOption = Format.json,
) -> None:
    """Write the rows of the source `Sensors`, for the source `Files`."""
    from tidegate.sources._recording import write_sensors
    from tidegate.sources.sensors import Sensors

    source = Sensors(sensors=sensors, rate=rate, seed=seed, start=start)
    write = partial(write_sensors, source, out, format=format.value, malformed=malformed)
    _write(write, out, _volume(rows, size, files))


def _volume(rows: int | None, size: str | None, files: int) -> Volume:
    from tidegate.sources._folder import Volume

    if rows is None and size is None:
        rows = _DEFAULT_ROWS
    if rows is not None and size is not None:
        raise ConfigError("give --rows or --size, not both")
    return Volume(rows=rows, size=None if size is None else units.size(size), files=files)


def _write(write: Callable[..., Totals], out: Path, volume: Volume) -> None:
    with progress() as show:

        def advance(done: Totals) -> None:
            share = (done.rows, volume.rows) if volume.rows is not None else (done.size, volume.size)
            show(*share, f"{done.rows:,} rows, {amount(done.size)}")

        written = write(volume, progress=advance)
    files = f"{written.files:,} file{'s' if written.files > 1 else ''}"
    typer.echo(
        f"wrote {written.rows:,} rows, {amount(written.size)}, to {files} in {out}, from {written.first} on"
    )
