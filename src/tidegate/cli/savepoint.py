"""`tidegate savepoint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CheckpointArgument = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="The folder that the pipeline goes on from.")
]
LogOption = Annotated[
    str | None,
    typer.Option("--log", metavar="PLACE", help="Where the runs are, when state.log was set."),
]


def savepoint(
    checkpoint: CheckpointArgument,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet.")],
    log: LogOption = None,
) -> None:
    """Copy a checkpoint at its last committed batch.

    The pipeline may be running. A pipeline can be started from the copy with `--checkpoint DEST`, with any
    number of state nodes and any backend. What the sinks have written is not part of it.
    """
    from tidegate.run.savepoint import save

    batch_id = save(checkpoint, dest, log=log)
    typer.echo(
        f"batch {batch_id} is saved in {dest}; start from it with: tidegate run FILE --checkpoint {dest}"
    )
    if log is not None:
        typer.echo(
            "its runs are in it: start with --set state.log=none, or copy them from its folder state to a "
            "place that no other checkpoint uses, and name that"
        )
