"""`tidegate status`."""

from __future__ import annotations

import typer

from tidegate.cli.options import CheckpointArgument, JsonOption


def status(checkpoint: CheckpointArgument, json: JsonOption = False) -> None:
    """Show what a running pipeline is doing.

    Its batches, its state nodes, and the rescale under way or the latest one.
    """
    from tidegate.control.client import ControlClient
    from tidegate.view.json import document
    from tidegate.view.rescales import print_status

    now = ControlClient.find(checkpoint).status()
    if json:
        typer.echo(document(now))
    else:
        print_status(now)
