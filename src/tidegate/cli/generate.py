"""`tidegate generate`: input data of any size, the same for the same seed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate import units
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.sources._folder import Progress, Volume, Written

app = typer.Typer(
    name="generate",
    help="Write input data of any size.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SECONDS_BETWEEN_LINES = 2.0
_DEFAULT_ROWS = 100_000

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to; files that it has stay.")]
Rows = Annotated[int | None, typer.Option(help=f"How many rows. {_DEFAULT_ROWS:,} unless --size is given.")]
Size = Annotated[str | None, typer.Option(help="How many bytes instead of rows, like '200 MB'.")]
Files = Annotated[int, typer.Option(min=1, help="Into how many files.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same rows.")]
Malformed = Annotated[float, typer.Option(min=0, max=1, help="Share of lines that are broken, 0 to 1.")]


class Format(StrEnum):
    """How sensor rows are written."""

    json = "json"
    csv = "csv"
    parquet = "parquet"


SensorCount = Annotated[int, typer.Option(min=1, help="How many sensors send.")]
Rate = Annotated[float | None, typer.Option(help="Rows per second of event time; all sensors together.")]
Start = Annotated[str | None, typer.Option(help="Event time of the start, like 2025-01-31T12:00:00.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Of the files.")]


@app.command()
def wikipedia(
    out: Out,
    rows: Rows = None,
    size: Size = None,
    files: Files = 10,
    seed: Seed = 0,
    malformed: Malformed = 0.0,
) -> None:
    """Changes like those of Wikipedia, as JSON lines, for the source `Wikipedia`."""
    from tidegate.sources.wikipedia import write_wikipedia

    _write(partial(write_wikipedia, out, seed=seed, malformed=malformed), out, _volume(rows, size, files))


@app.command()
def server_names(
    out: Out,
    rows: Rows = None,
    size: Size = None,
    files: Files = 10,
    seed: Seed = 0,
    malformed: Malformed = 0.0,
) -> None:
    """Ids and server names, as JSON lines, for the source `ServerNames`."""
    from tidegate.sources.wikipedia import write_server_names

    _write(partial(write_server_names, out, seed=seed, malformed=malformed), out, _volume(rows, size, files))


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
    """What the source `Sensors` sends, for the source `Files`."""
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
        raise ConfigError("--rows and --size exclude each other; give one of them")
    return Volume(rows=rows, size=None if size is None else units.size(size), files=files)


def _write(write: Callable[..., Written], out: Path, volume: Volume) -> None:
    with _shown(volume) as progress:
        written = write(volume, progress=progress)
    files = f"{written.files:,} file{'s' if written.files > 1 else ''}"
    typer.echo(f"{_amount(written.rows, written.size)} in {files} in {out}, from {written.first} on")


@contextmanager
def _shown(volume: Volume) -> Iterator[Progress]:
    """A progress bar on a terminal, a line every two seconds elsewhere."""
    total = volume.rows or volume.size or 1
    if not sys.stderr.isatty():
        yield _Lines(total, by_rows=volume.rows is not None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    done = [0, 0]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def advance(rows: int, size: int) -> None:
            done[0] += rows
            done[1] += size
            bar.update(task, completed=done[0 if volume.rows is not None else 1], description=_amount(*done))

        yield advance


class _Lines:
    """Progress as plain lines on standard error, not more often than every two seconds."""

    def __init__(self, total: int, *, by_rows: bool) -> None:
        self._total = total
        self._by_rows = by_rows
        self._rows = self._size = 0
        self._told = time.monotonic()

    def __call__(self, rows: int, size: int) -> None:
        self._rows += rows
        self._size += size
        if time.monotonic() - self._told < _SECONDS_BETWEEN_LINES:
            return
        self._told = time.monotonic()
        share = min(1.0, (self._rows if self._by_rows else self._size) / self._total)
        typer.echo(f"{share:4.0%}  {_amount(self._rows, self._size)}", err=True)


def _amount(rows: int, size: int) -> str:
    return f"{rows:,} rows, {size / 1e6:,.1f} MB"
