"""`tidegate state`: what is in a checkpoint's state."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from tidegate.cli.savepoint import CheckpointArgument, LogOption
from tidegate.errors import StateError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.run.inspection import GroupSize, Inspection, Reader, Recorded
    from tidegate.state.table.table import StateTable

app = typer.Typer(
    name="state",
    help="Look into the state of a checkpoint.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GROUPS_SHOWN = 10
_UNBOUNDED = 10_000

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="As `tidegate state ls` names it.")]
BatchOption = Annotated[
    int | None, typer.Option("--batch", metavar="N", help="After this batch instead of the newest.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="As one JSON object on stdout.")]


@app.command()
def ls(
    checkpoint: CheckpointArgument,
    groups: Annotated[
        bool, typer.Option("--groups", help="Also the sizes of key groups; reads all of the state.")
    ] = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """List the batches whose state is on record, and the state tables."""
    from tidegate.run.inspection import Inspection

    found = Inspection(checkpoint, log=log)
    tables = found.batch().manifest.tables if found.batches else ()
    sizes = _sizes(found, tables) if groups and found.batches else {}
    if json:
        form = {
            "pipeline": found.pipeline,
            "batches": [_batch_form(recorded) for recorded in found.batches],
            "tables": [_table_form(table, sizes.get(table.name)) for table in tables],
        }
        typer.echo(jsonlib.dumps(form, indent=2))
        return
    if not found.batches:
        typer.echo(f"{found.pipeline}: no batch with state has been committed")
        return
    _print_rows(
        ("batch", "began", "watermark", "rows", "bytes", "runs"),
        [
            (
                str(recorded.batch_id),
                _moment(recorded.began),
                _moment(recorded.watermark),
                f"{recorded.rows:,}",
                f"{recorded.bytes:,}",
                str(len(recorded.manifest.runs)),
            )
            for recorded in found.batches
        ],
    )
    typer.echo()
    _print_rows(
        ("table", "kind", "key", "columns"),
        [(table.name, table.kind, _columns(table.keys), _columns(table.values)) for table in tables],
    )
    for name, parts in sizes.items():
        typer.echo()
        _print_groups(name, parts, found.batch().manifest.groups)


@app.command()
def show(
    checkpoint: CheckpointArgument,
    table: TableArgument,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN=VALUE", help="Only rows with this key; may be repeated."),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option("--null", metavar="COLUMN", help="Only rows where this key column is null."),
    ] = None,
    batch: BatchOption = None,
    limit: Annotated[int, typer.Option(min=1, help="So many rows at most.")] = 20,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Show the state of a key, or the first rows of a table.

    Binary keys are written in hex digits, times like 2025-01-31T12:00:00 (UTC unless they say otherwise).
    """
    from tidegate.run.inspection import Inspection, key_value

    texts: dict[str, str | None] = dict.fromkeys(null or ())
    for each in key or ():
        name, equals, text = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"--key {each}: write it as COLUMN=VALUE")
        texts[name] = text
    found = Inspection(checkpoint, log=log)
    recorded = found.batch(batch)
    with found.opened(recorded) as reader:
        known = reader.table(table)
        wanted = {name: key_value(known, name, text) for name, text in texts.items()}
        rows, more = _first_rows(reader, known, wanted, limit)
    if json:
        form = {"table": table, "batch": recorded.batch_id, "rows": _plain(rows.to_pylist()), "more": more}
        typer.echo(jsonlib.dumps(form, indent=2))
        return
    if not rows.num_rows:
        typer.echo(f"{table} has no such row after batch {recorded.batch_id}")
        return
    _print_rows(rows.column_names, [[_text(value) for value in row.values()] for row in rows.to_pylist()])
    if more:
        typer.echo(f"... and more; --limit shows more than {limit}")


@app.command()
def export(
    checkpoint: CheckpointArgument,
    table: TableArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="A file that does not exist yet.")],
    batch: BatchOption = None,
    log: LogOption = None,
) -> None:
    """Write a state table to a Parquet file.

    Its columns are those of the key, those of the value and `expires`: the event time from which the row no
    longer counts, or null.
    """
    from tidegate.run.inspection import Inspection

    if out.exists():
        raise StateError(f"{out} is there already; remove it, or choose another name")
    found = Inspection(checkpoint, log=log)
    recorded = found.batch(batch)
    with found.opened(recorded) as reader:
        count = _write_parquet(reader, reader.table(table), out)
    typer.echo(f"{count:,} rows of {table} after batch {recorded.batch_id} are in {out}")


@app.command()
def verify(checkpoint: CheckpointArgument, log: LogOption = None) -> None:
    """Check every checksum of the state on record.

    Exit code 1 when something is damaged or missing; what, and in which file, is on standard error.
    """
    from tidegate.run.inspection import Inspection

    with _shown() as progress:
        verdict = Inspection(checkpoint, log=log, lenient=True).verify(progress)
    for problem in verdict.problems:
        typer.secho(f"{problem.file}: {problem.problem}", fg="red", err=True)
    looked_at = f"{verdict.batches} batches, {verdict.runs} runs, {verdict.bytes:,} bytes"
    if verdict.problems:
        typer.echo(f"{len(verdict.problems)} problems in {looked_at}")
        raise typer.Exit(1)
    typer.echo(f"{looked_at}: all in order")


def _sizes(found: Inspection, tables: Sequence[StateTable]) -> dict[str, list[GroupSize]]:
    with found.opened(found.batch()) as reader:
        return {table.name: reader.sizes(table) for table in tables}


def _first_rows(
    reader: Reader, table: StateTable, wanted: Mapping[str, pa.Scalar], limit: int
) -> tuple[pa.Table, bool]:
    """Up to `limit` rows with these key columns, and whether there are more."""
    import pyarrow as pa

    from tidegate.run.inspection import matching, readable

    parts: list[pa.Table] = []
    whole_key = set(wanted) == set(table.keys.names)
    held = 0
    for piece in reader.pieces(table):
        rows = matching(piece, wanted)
        if rows.num_rows:
            parts.append(readable(rows.slice(0, limit + 1), table))
            held += rows.num_rows
        # The rows of a key are together, so nothing more of it follows.
        if held > limit or (held and whole_key):
            break
    empty = readable(table.schema.empty_table(), table)
    found = pa.concat_tables(parts) if parts else empty
    return found.slice(0, limit), held > limit


def _write_parquet(reader: Reader, table: StateTable, out: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidegate.run.inspection import readable

    schema = readable(table.schema.empty_table(), table).schema
    draft = out.with_name(f".{out.name}.{uuid4().hex}")
    count = 0
    try:
        with pq.ParquetWriter(draft, schema) as writer:
            for piece in reader.pieces(table):
                writer.write_table(readable(piece, table).cast(schema))
                count += piece.num_rows
        draft.rename(out)
    except (OSError, pa.ArrowException) as error:
        raise StateError(f"{out} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return count


@contextmanager
def _shown() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, nothing elsewhere: the last line says it all."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_groups(name: str, sizes: Sequence[GroupSize], count: int) -> None:
    rows = sum(size.rows for size in sizes)
    _print_rows(
        ("key group", "rows", "bytes", "share"),
        [
            (str(size.group), f"{size.rows:,}", f"{size.bytes:,}", f"{size.rows / rows:.1%}")
            for size in sizes[:_GROUPS_SHOWN]
        ],
    )
    rest = f", of which {min(_GROUPS_SHOWN, len(sizes))} are shown" if len(sizes) > _GROUPS_SHOWN else ""
    typer.echo(
        f"{name}: {rows:,} rows in {len(sizes)} of {count} key groups{rest}; "
        f"the largest has {_skew(sizes, count):.1f} times the mean"
    )


def _skew(sizes: Sequence[GroupSize], count: int) -> float:
    """Rows of the largest key group over the mean of all; 1 when they are even, or empty."""
    rows = sum(size.rows for size in sizes)
    return sizes[0].rows * count / rows if rows else 1.0


def _print_rows(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # What is no terminal has no width: there, nothing is cut.
    console.width = console.width if console.is_terminal else _UNBOUNDED
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(names):
        numbers = all(row[place].replace(",", "").replace(".", "").rstrip("%").isdigit() for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _batch_form(recorded: Recorded) -> dict[str, Any]:
    return {
        "batch": recorded.batch_id,
        "began": None if recorded.began is None else recorded.began.isoformat(),
        "watermark": None if recorded.watermark is None else recorded.watermark.isoformat(),
        "rows": recorded.rows,
        "bytes": recorded.bytes,
        "runs": [run.name for run in recorded.manifest.runs],
    }


def _table_form(table: StateTable, sizes: Sequence[GroupSize] | None) -> dict[str, Any]:
    form: dict[str, Any] = {
        "name": table.name,
        "kind": table.kind,
        "key": {field.name: str(field.type) for field in table.keys},
        "columns": {field.name: str(field.type) for field in table.values},
    }
    if sizes is not None:
        form["groups"] = [{"group": s.group, "rows": s.rows, "bytes": s.bytes} for s in sizes]
    return form


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 16 else f"({len(value):,} bytes)"
    if value is None or isinstance(value, str):
        return "null" if value is None else value
    return str(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it: times as ISO text, bytes as hex digits, what is no number as text."""
    match value:
        case dict():
            return {str(name): _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
