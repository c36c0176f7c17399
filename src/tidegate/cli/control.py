"""`tidegate status`, `history` and `stop`: a running pipeline watched, and ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.connection import connected
from tidegate.cli.options import AuthorityOption, JsonOption, PipelineArgument, TokenFileOption
from tidegate.errors import CheckpointError, ControlError
from tidegate.view.json import document
from tidegate.view.rescales import print_history, print_rescale, print_status

if TYPE_CHECKING:
    from tidegate.rescale.model import Rescale

_POLL_SECONDS = 0.2


def status(
    checkpoint: PipelineArgument,
    token_file: TokenFileOption = None,
    authority: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a running pipeline is doing.

    Its batches, its state nodes, and the rescale under way or the latest one.
    """
    now = connected(checkpoint, token_file, authority).status()
    if json:
        typer.echo(document(now))
    else:
        print_status(now)


def history(
    checkpoint: PipelineArgument,
    token_file: TokenFileOption = None,
    authority: AuthorityOption = None,
    number: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="Show just this rescale, in full.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the rescales of a pipeline, oldest first.

    It need not be running, where its checkpoint can be read.
    """
    pipeline, known = _rescales(checkpoint, token_file, authority)
    if number is not None:
        one = next((each for each in known if each.number == number), None)
        if one is None:
            numbers = ", ".join(str(each.number) for each in known) or "none"
            raise ControlError(f"{pipeline} has no rescale {number}; it has: {numbers}")
        if json:
            typer.echo(document(one))
        else:
            print_rescale(one)
    elif json:
        typer.echo(document({"rescales": known}))
    elif known:
        print_history(known)
    else:
        typer.echo(f"{pipeline} has never been rescaled")


def _rescales(place: str, token_file: Path | None, authority: Path | None) -> tuple[str, tuple[Rescale, ...]]:
    """The name of a pipeline, and its rescales: as its driver tells them, or else as they are on record."""
    try:
        client = connected(place, token_file, authority)
        return client.pipeline, client.history()
    except ControlError as error:
        from tidegate.rescale import records
        from tidegate.run.checkpoint import find

        if place.startswith(("https://", "http://")):
            raise
        try:
            found, pipeline = find(place)
        except CheckpointError:
            raise error from None
        return pipeline, tuple(records.load(found.rescales))


def stop(
    checkpoint: PipelineArgument,
    token_file: TokenFileOption = None,
    authority: AuthorityOption = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    json: JsonOption = False,
) -> None:
    """Stop a running pipeline after the batch that it is working on.

    Waits until it has stopped. The next start resumes from there.
    """
    client = connected(checkpoint, token_file, authority)
    client.stop()
    while not no_wait and client.answers():
        time.sleep(_POLL_SECONDS)
    if json:
        typer.echo(document({"pipeline": client.pipeline, "stopped": not no_wait}))
    elif no_wait:
        typer.echo(f"{client.pipeline} will stop after the current batch")
    else:
        typer.echo(f"{client.pipeline} has stopped")
