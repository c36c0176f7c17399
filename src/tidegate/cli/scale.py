"""`tidegate scale`."""

from __future__ import annotations

import typer

from tidegate.cli.control import (
    JsonOption,
    NodesOption,
    NoWaitOption,
    ParallelismOption,
    StepOption,
    StrategyOption,
)
from tidegate.cli.savepoint import CheckpointArgument


def scale(
    checkpoint: CheckpointArgument,
    nodes: NodesOption = None,
    parallelism: ParallelismOption = None,
    strategy: StrategyOption = None,
    step: StepOption = None,
    no_wait: NoWaitOption = False,
    json: JsonOption = False,
) -> None:
    """Rescale a running pipeline.

    Shows the plan in a line, then how far it is until it has settled. Batches go on meanwhile. Exit code 1
    when it fails, or gives way to another rescale.
    """
    if nodes is None and parallelism is None:
        raise typer.BadParameter("say what to change: --nodes, --parallelism or both")
    from tidegate.cli.following import carry_out
    from tidegate.control.client import ControlClient
    from tidegate.rescale.model import Ask

    ask = Ask(nodes=nodes, parallelism=parallelism, strategy=strategy, step=step)
    carry_out(ControlClient.find(checkpoint), ask, wait=not no_wait, json=json)
