"""`tidegate savepoint`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.options import CheckpointArgument, LogOption


def savepoint(
    checkpoint: CheckpointArgument,
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A folder or URL where nothing is yet.")],
    log: LogOption = None,
) -> None:
    """Copy a checkpoint at its last committed batch.

    The pipeline may be running. Start a pipeline from the copy with `--checkpoint DEST`, with any number of
    state nodes and any backend. The output of the sinks is not copied.
    """
    from tidegate.run.savepoint import save

    batch_id = save(checkpoint, dest, log=log)
    typer.echo(f"saved batch {batch_id} in {dest}; start from it with: tidegate run FILE --checkpoint {dest}")
    if log is not None:
        typer.echo(
            "the savepoint contains its runs: start with --set state.log=none, or copy them from its folder "
            "`state` to a place that no other checkpoint uses and set state.log to that"
        )
