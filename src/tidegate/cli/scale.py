"""`tidegate plan`, `scale` and `rebalance`: what a rescale would do, and a rescale until it is over."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.connection import connected
from tidegate.cli.options import (
    AuthorityOption,
    BytesOption,
    JsonOption,
    NodesOption,
    NoWaitOption,
    ParallelismOption,
    PipelineArgument,
    StepOption,
    StrategyOption,
    TokenFileOption,
)
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask, Rescale
from tidegate.view.json import document
from tidegate.view.progress import progress
from tidegate.view.rescales import arrival, plan_line, print_plan, print_rescale, stage

if TYPE_CHECKING:
    from tidegate.control.client import ControlClient

_POLL_SECONDS = 0.2


def plan(
    checkpoint: PipelineArgument,
    token_file: TokenFileOption = None,
    authority: AuthorityOption = None,
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
    ask = Ask(
        kind="rebalance" if rebalance else "scale",
        nodes=nodes,
        parallelism=parallelism,
        strategy=strategy,
        step=step,
        bytes=limit,
    )
    found = connected(checkpoint, token_file, authority).plan(ask)
    if json:
        typer.echo(document(found))
        return
    print_plan(found)
    typer.echo(f"Nothing has changed. To apply it: {_command(checkpoint, ask)}")


def scale(
    checkpoint: PipelineArgument,
    token_file: TokenFileOption = None,
    authority: AuthorityOption = None,
    nodes: NodesOption = None,
    parallelism: ParallelismOption = None,
    strategy: StrategyOption = None,
    step: StepOption = None,
    no_wait: NoWaitOption = False,
    json: JsonOption = False,
) -> None:
    """Rescale a running pipeline.

    Shows the plan in a line, then the progress until it has settled. Batches keep running meanwhile. Exit
    code 1 when it fails or is replaced by another rescale.
    """
    if nodes is None and parallelism is None:
        raise typer.BadParameter("say what to change: --nodes, --parallelism or both")
    ask = Ask(nodes=nodes, parallelism=parallelism, strategy=strategy, step=step)
    client = connected(checkpoint, token_file, authority)
    _carry_out(client, ask, wait=not no_wait, json=json)


def rebalance(
    checkpoint: PipelineArgument,
    token_file: TokenFileOption = None,
    authority: AuthorityOption = None,
    limit: BytesOption = None,
    strategy: StrategyOption = None,
    step: StepOption = None,
    no_wait: NoWaitOption = False,
    json: JsonOption = False,
) -> None:
    """Redistribute the state of a running pipeline over the same nodes.

    Measured load decides which key groups move. Batches keep running meanwhile. Exit code 1 when it fails
    or is replaced by another rescale.
    """
    ask = Ask(kind="rebalance", strategy=strategy, step=step, bytes=limit)
    client = connected(checkpoint, token_file, authority)
    _carry_out(client, ask, wait=not no_wait, json=json)


def _command(checkpoint: str, ask: Ask) -> str:
    words = ["tidegate", ask.kind, checkpoint]
    for name, value in asdict(ask).items():
        if name != "kind" and value is not None:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _carry_out(client: ControlClient, ask: Ask, *, wait: bool, json: bool) -> None:
    plan = client.plan(ask)
    if not json:
        typer.echo(plan_line(plan))
    rescale = client.apply(ask)
    if wait:
        rescale = _follow(client, rescale)
    if json:
        typer.echo(document(rescale))
    elif wait:
        print_rescale(rescale)
    else:
        typer.echo(f"rescale {rescale.number} is under way")
    if wait and rescale.phase != "settled":
        raise typer.Exit(1)


def _follow(client: ControlClient, rescale: Rescale) -> Rescale:
    """The rescale when it is over. Ctrl-C ends the watching, not the rescale."""
    # A bar belongs to this one rescale; lines may end up in a log among others.
    label = "" if sys.stderr.isatty() else f"rescale {rescale.number}: "
    try:
        with progress() as show:
            show(*arrival(rescale), label + stage(rescale), stage=rescale.phase)
            while not rescale.over:
                time.sleep(_POLL_SECONDS)
                rescale = client.rescale(rescale.number)
                show(*arrival(rescale), label + stage(rescale), stage=rescale.phase)
    except ControlError as error:
        raise ControlError(f"rescale {rescale.number} was {stage(rescale)}; then: {error}") from error
    except KeyboardInterrupt:
        typer.echo(f"rescale {rescale.number} continues; `tidegate history` shows how it went", err=True)
        raise typer.Exit(130) from None
    return rescale
