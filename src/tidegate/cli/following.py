"""A rescale followed until it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from tidegate.cli.control import print_json
from tidegate.errors import ControlError
from tidegate.view.rescales import headline, in_short, print_rescale, stage

if TYPE_CHECKING:
    from tidegate.control.client import ControlClient
    from tidegate.rescale.model import Ask, Rescale

Show = Callable[["Rescale"], None]

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_LINES = 2.0


def carry_out(client: ControlClient, ask: Ask, *, wait: bool, json: bool) -> None:
    """Show the plan, set it going, follow it and sum it up. Exit code 1 when it did not settle."""
    plan = client.plan(ask)
    if not json:
        typer.echo(f"{headline(plan)}: {in_short(plan)}")
    rescale = client.apply(ask)
    if wait:
        rescale = _follow(client, rescale)
    if json:
        print_json(rescale)
    elif wait:
        print_rescale(rescale)
    else:
        typer.echo(f"rescale {rescale.number} is under way")
    if wait and rescale.phase != "settled":
        raise typer.Exit(1)


def _follow(client: ControlClient, rescale: Rescale) -> Rescale:
    """How it ended. Ctrl-C ends the watching, not the rescale."""
    try:
        with _shown() as show:
            show(rescale)
            while not rescale.over:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                rescale = client.rescale(rescale.number)
                show(rescale)
    except ControlError as error:
        raise ControlError(f"rescale {rescale.number} was {stage(rescale)}; then: {error}") from error
    except KeyboardInterrupt:
        typer.echo(f"rescale {rescale.number} goes on; `tidegate history` shows how it went", err=True)
        raise typer.Exit(130) from None
    return rescale


@contextmanager
def _shown() -> Iterator[Show]:
    """A progress bar on a terminal; elsewhere a line for each phase, and one every two seconds."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(rescale: Rescale) -> None:
            done, total = _done(rescale)
            bar.update(task, completed=done, total=total, description=escape(stage(rescale)))

        yield show


class _Lines:
    """Progress as plain lines on standard error."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._told = time.monotonic()

    def __call__(self, rescale: Rescale) -> None:
        due = time.monotonic() - self._told >= _SECONDS_BETWEEN_LINES
        if rescale.phase == self._phase and not due:
            return
        self._phase = rescale.phase
        self._told = time.monotonic()
        typer.echo(f"rescale {rescale.number}: {stage(rescale)}", err=True)


def _done(rescale: Rescale) -> tuple[int, int | None]:
    """Key groups that have arrived, and how many move; None while that says nothing about the end."""
    if rescale.phase == "starting" or not rescale.groups_moved:
        return 0, None
    return max(rescale.groups_moved - rescale.groups_left, 0), rescale.groups_moved
