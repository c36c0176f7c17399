"""`tidegate state`: what is in a checkpoint's state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from tidegate.cli.options import CheckpointArgument, JsonOption, LogOption, application
from tidegate.errors import StateError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.run.inspection import Reader
    from tidegate.state.table.table import StateTable

app = application("state", "Look into the state of a checkpoint.")

TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="A table as `tidegate state ls` names it.")
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", metavar="N", help="The state after this batch instead of the newest.")
]


@app.command()
def ls(
    checkpoint: CheckpointArgument,
    groups: Annotated[
        bool, typer.Option("--groups", help="Show the sizes of key groups too; reads all of the state.")
    ] = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """List the batches whose state can be read, and the state tables."""
    from tidegate.run.inspection import Inspection
    from tidegate.view.json import document
    from tidegate.view.state import overview, print_overview

    found = Inspection(checkpoint, log=log)
    tables = found.batch().manifest.tables if found.batches else ()
    sizes = {}
    if groups and found.batches:
        with found.opened(found.batch()) as reader:
            sizes = {table.name: reader.sizes(table) for table in tables}
    if json:
        typer.echo(document(overview(found.pipeline, found.batches, tables, sizes)))
    elif found.batches:
        print_overview(found.batches, tables, sizes)
    else:
        typer.echo(f"{found.pipeline}: no batch with state has been committed")


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
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many rows.")] = 20,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Show the state of a key, or the first rows of a table.

    Write binary keys in hex digits, and times like 2025-01-31T12:00:00 (in UTC unless they have an offset).
    """
    from tidegate.run.inspection import Inspection, key_value
    from tidegate.view.json import document
    from tidegate.view.state import print_table

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
        form = {"table": table, "batch": recorded.batch_id, "rows": rows.to_pylist(), "more": more}
        typer.echo(document(form))
        return
    if not rows.num_rows:
        typer.echo(f"{table} has no matching row after batch {recorded.batch_id}")
        return
    print_table(rows)
    if more:
        typer.echo(f"... and more than these {limit}; raise --limit to see them")


@app.command()
def export(
    checkpoint: CheckpointArgument,
    table: TableArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="A file that does not exist yet.")],
    batch: BatchOption = None,
    log: LogOption = None,
) -> None:
    """Write a state table to a Parquet file.

    Its columns are those of the key, those of the value, and `expires`: the event time at which the row
    expires, or null if it does not.
    """
    from tidegate.run.inspection import Inspection

    if out.exists():
        raise StateError(f"{out} exists already; remove it, or choose another name")
    found = Inspection(checkpoint, log=log)
    recorded = found.batch(batch)
    with found.opened(recorded) as reader:
        count = _write_parquet(reader, reader.table(table), out)
    typer.echo(f"wrote {count:,} rows of {table} after batch {recorded.batch_id} to {out}")


@app.command()
def verify(checkpoint: CheckpointArgument, log: LogOption = None) -> None:
    """Check that state, ledger, Spark's own record and outputs are complete and consistent.

    Exit code 1 if anything is damaged or missing; standard error says what, file by file.
    """
    from tidegate.run.inspection import Inspection
    from tidegate.view.figures import amount
    from tidegate.view.progress import progress

    with progress() as show:
        found = Inspection(checkpoint, log=log, lenient=True)
        verdict = found.verify(
            lambda done, total: show(done, total, f"{amount(done)} of {amount(total)} checked")
        )
    for problem in verdict.problems:
        typer.secho(f"{problem.file}: {problem.problem}", fg="red", err=True)
    checked = f"{verdict.batches} batches, {verdict.runs} runs, {verdict.bytes:,} bytes"
    if verdict.problems:
        typer.echo(f"{len(verdict.problems)} problems in {checked}")
        raise typer.Exit(1)
    typer.echo(f"{checked}: all in order")


@app.command()
def watermark(
    checkpoint: CheckpointArgument,
    reset: Annotated[
        str | None,
        typer.Option("--reset", metavar="TIME", help="Set it back to this time, like 2026-01-31T12:00:00Z."),
    ] = None,
    log: LogOption = None,
) -> None:
    """Show the watermark and the newest event time of each source; or set the watermark back.

    For a checkpoint whose watermark was moved far ahead by a wrong event time, so that every row is late.
    What has been closed stays closed. The pipeline must not be running; to keep a way back, run `tidegate
    savepoint` first.
    """
    from tidegate.batch.time import moment
    from tidegate.run import reset as resetting

    if reset is not None:
        batch_id = resetting.reset(checkpoint, _moment(reset), log=log)
        typer.echo(f"after batch {batch_id} the watermark is {_moment(reset)}")
        return
    last = resetting.times(checkpoint)
    typer.echo(f"watermark: {moment(last.watermark) or 'none yet'}, after batch {last.batch_id}")
    for source, newest in last.event_times.items():
        typer.echo(f"{source}: newest event time {moment(newest)}")


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time; write it like 2026-01-31T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@app.command()
def drop(
    checkpoint: CheckpointArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step as the pipeline names it.")],
    log: LogOption = None,
) -> None:
    """Discard the state of one step.

    For a step that has changed or was removed, so that the others can resume from the checkpoint. The step
    starts without state. The pipeline must not be running; to keep a way back, run `tidegate savepoint`
    first.
    """
    from tidegate.run.drop import drop

    dropped = drop(checkpoint, step, log=log)
    tables = ", ".join(dropped.tables)
    typer.echo(f"discarded {tables}: {step} has no state after batch {dropped.batch_id} any longer")


def _first_rows(
    reader: Reader, table: StateTable, wanted: Mapping[str, pa.Scalar], limit: int
) -> tuple[pa.Table, bool]:
    """Up to `limit` rows with these key columns, and whether there are more."""
    import pyarrow as pa

    from tidegate.run.inspection import matching, readable

    parts: list[pa.Table] = []
    whole_key = len(wanted) == len(table.keys)
    held = 0
    for piece in reader.pieces(table):
        rows = matching(readable(piece, table), wanted)
        if rows.num_rows:
            parts.append(rows.slice(0, limit + 1))
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
        raise StateError(f"cannot write {out}: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return count
