"""What is shown of a running pipeline."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal, Self, TextIO

from tidegate.run.progress import BatchProgress
from tidegate.run.summary import Summary
from tidegate.units import seconds

Mode = Literal["auto", "live", "lines", "json", "quiet"]
Clock = Callable[[], float]


class View:
    """A listener for batches and a context manager around the run. This one shows nothing.

    Called once per batch, in order; `summarise` at most once, after the last batch.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        return None

    def __call__(self, progress: BatchProgress) -> None:
        return None

    def summarise(self, summary: Summary) -> None:
        return None


def for_mode(mode: Mode = "auto", every: str | float = 3.0, stream: TextIO | None = None) -> View:
    """The view for a mode. `auto` is live on a terminal and lines elsewhere.

    `every` is the least time between two lines, as a duration or in seconds.
    """
    # Imported here: each of these modules imports View from this one.
    from rich.console import Console

    from tidegate.view.json import JsonView
    from tidegate.view.lines import LinesView
    from tidegate.view.live import LiveView

    stream = sys.stdout if stream is None else stream
    if mode == "auto":
        mode = "live" if Console(file=stream).is_terminal and stream.isatty() else "lines"
    if mode == "live":
        return LiveView(Console(file=stream))
    if mode == "lines":
        return LinesView(stream, every=seconds(every) if isinstance(every, str) else every)
    if mode == "json":
        return JsonView(stream)
    return View()
