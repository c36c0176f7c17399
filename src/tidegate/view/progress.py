"""How far long work of a command is: a bar on a terminal, plain lines elsewhere. Both on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import typer

_SECONDS_BETWEEN_LINES = 2.0


class Progress(Protocol):
    """Called as often as one likes with what is done, of how much (None: not known yet), and a text.

    Elsewhere than on a terminal a line is due every two seconds, and whenever the `stage` is a new one.
    """

    def __call__(self, done: float, total: float | None, text: str, *, stage: str = "") -> None: ...


@contextmanager
def progress() -> Iterator[Progress]:
    """Show progress for the length of the block; the bar is gone after it."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(done: float, total: float | None, text: str, *, stage: str = "") -> None:
            bar.update(task, completed=done, total=total, description=escape(text))

        yield show


class _Lines:
    def __init__(self) -> None:
        self._stage = ""
        self._written_at = time.monotonic()

    def __call__(self, done: float, total: float | None, text: str, *, stage: str = "") -> None:
        now = time.monotonic()
        if stage == self._stage and now - self._written_at < _SECONDS_BETWEEN_LINES:
            return
        self._stage, self._written_at = stage, now
        share = "" if stage or not total else f"{min(1.0, done / total):4.0%}  "
        typer.echo(f"{share}{text}", err=True)
