"""`tidegate stop`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tidegate.cli.options import CheckpointArgument, JsonOption

_SECONDS_BETWEEN_LOOKS = 0.2


def stop(
    checkpoint: CheckpointArgument,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    json: JsonOption = False,
) -> None:
    """Stop a running pipeline after the batch that it is working on.

    Waits until it has stopped. The next start resumes from there.
    """
    from tidegate.control.client import ControlClient
    from tidegate.view.json import document

    client = ControlClient.find(checkpoint)
    client.stop()
    while not no_wait and client.answers():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if json:
        typer.echo(document({"pipeline": client.pipeline, "stopped": not no_wait}))
    elif no_wait:
        typer.echo(f"{client.pipeline} will stop after the current batch")
    else:
        typer.echo(f"{client.pipeline} has stopped")
