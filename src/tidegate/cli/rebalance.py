"""`tidegate rebalance`."""

from __future__ import annotations

from tidegate.cli.control import (
    BytesOption,
    JsonOption,
    NoWaitOption,
    StepOption,
    StrategyOption,
)
from tidegate.cli.savepoint import CheckpointArgument


def rebalance(
    checkpoint: CheckpointArgument,
    limit: BytesOption = None,
    strategy: StrategyOption = None,
    step: StepOption = None,
    no_wait: NoWaitOption = False,
    json: JsonOption = False,
) -> None:
    """Spread state anew over the same nodes.

    Measured load decides which key groups of the running pipeline move. Batches go on meanwhile.
    Exit code 1 when it fails, or gives way to another rescale.
    """
    from tidegate.cli.following import carry_out
    from tidegate.control.client import ControlClient
    from tidegate.rescale.model import Ask

    ask = Ask(kind="rebalance", strategy=strategy, step=step, bytes=limit)
    carry_out(ControlClient.find(checkpoint), ask, wait=not no_wait, json=json)
