"""`tidegate history`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.options import CheckpointArgument, JsonOption


def history(
    checkpoint: CheckpointArgument,
    number: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="Show just this rescale, in full.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the rescales of a running pipeline.

    All since it was started, oldest first.
    """
    from tidegate.control.client import ControlClient
    from tidegate.view.json import document
    from tidegate.view.rescales import print_history, print_rescale

    client = ControlClient.find(checkpoint)
    if number is not None:
        one = client.rescale(number)
        if json:
            typer.echo(document(one))
        else:
            print_rescale(one)
        return
    known = client.history()
    if json:
        typer.echo(document({"rescales": known}))
    elif known:
        print_history(known)
    else:
        typer.echo(f"{client.pipeline} has not been rescaled since its start")
