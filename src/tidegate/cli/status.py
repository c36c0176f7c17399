"""`tidegate status`."""

from __future__ import annotations

import typer

from tidegate.cli.control import JsonOption, print_json
from tidegate.cli.savepoint import CheckpointArgument


def status(checkpoint: CheckpointArgument, json: JsonOption = False) -> None:
    """Show what a running pipeline is at.

    Its batches, its state nodes, and the rescale that is under way or was the latest.
    """
    from tidegate.control.client import ControlClient
    from tidegate.view.rescales import print_nodes, print_pairs, status_rows

    now = ControlClient.find(checkpoint).status()
    if json:
        print_json(now)
        return
    typer.echo(f"{now.pipeline} is {now.phase}")
    print_pairs(status_rows(now))
    if now.nodes:
        typer.echo()
        print_nodes(now.nodes)
