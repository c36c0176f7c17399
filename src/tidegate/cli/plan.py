"""`tidegate plan`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import (
    BytesOption,
    CheckpointArgument,
    JsonOption,
    NodesOption,
    ParallelismOption,
    StepOption,
    StrategyOption,
)

if TYPE_CHECKING:
    from tidegate.rescale.model import Ask


def plan(
    checkpoint: CheckpointArgument,
    nodes: NodesOption = None,
    parallelism: ParallelismOption = None,
    strategy: StrategyOption = None,
    step: StepOption = None,
    rebalance: Annotated[
        bool, typer.Option("--rebalance", help="Redistribute the key groups over the same nodes.")
    ] = False,
    limit: BytesOption = None,
    json: JsonOption = False,
) -> None:
    """Show what `tidegate scale` would do, or `tidegate rebalance` with --rebalance.

    Nothing is changed.
    """
    if rebalance and (nodes is not None or parallelism is not None):
        raise typer.BadParameter("--rebalance keeps nodes and parallelism; leave them out")
    if not rebalance and nodes is None and parallelism is None:
        raise typer.BadParameter("say what to plan: --nodes, --parallelism or both, or --rebalance")
    if limit is not None and not rebalance:
        raise typer.BadParameter("--bytes is for --rebalance")
    from tidegate.control.client import ControlClient
    from tidegate.rescale.model import Ask
    from tidegate.view.json import document
    from tidegate.view.rescales import print_plan

    ask = Ask(
        kind="rebalance" if rebalance else "scale",
        nodes=nodes,
        parallelism=parallelism,
        strategy=strategy,
        step=step,
        bytes=limit,
    )
    found = ControlClient.find(checkpoint).plan(ask)
    if json:
        typer.echo(document(found))
        return
    print_plan(found)
    typer.echo(f"Nothing has changed. To apply it: {_command(checkpoint, ask)}")


def _command(checkpoint: Path, ask: Ask) -> str:
    options = {
        "--nodes": ask.nodes,
        "--parallelism": ask.parallelism,
        "--strategy": ask.strategy,
        "--step": ask.step,
        "--bytes": ask.bytes,
    }
    words = ["tidegate", ask.kind, str(checkpoint)]
    for name, value in options.items():
        words += [] if value is None else [name, str(value)]
    return shlex.join(words)
