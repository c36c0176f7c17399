"""`tidegate stop`."""

from __future__ import annotations

import json as jsonlib
import time
from typing import Annotated

import typer

from tidegate.cli.control import JsonOption
from tidegate.cli.savepoint import CheckpointArgument

_SECONDS_BETWEEN_LOOKS = 0.2


def stop(
    checkpoint: CheckpointArgument,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    json: JsonOption = False,
) -> None:
    """Let a running pipeline finish and end.

    Waits until it has. It goes on from there when it is started again.
    """
    from tidegate.control.client import ControlClient

    client = ControlClient.find(checkpoint)
    client.stop()
    while not no_wait and client.answers():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if json:
        typer.echo(jsonlib.dumps({"pipeline": client.pipeline, "stopped": not no_wait}))
    elif no_wait:
        typer.echo(f"{client.pipeline} finishes its batch, then ends")
    else:
        typer.echo(f"{client.pipeline} has stopped")
