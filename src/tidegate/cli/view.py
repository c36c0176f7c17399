"""What a person or a program sees of a running pipeline.

A view is a listener for batches and a context manager around the run; `summarise` ends it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tidegate.cli.chatter import Chatter
from tidegate.cli.figures import count, rate, span, sparkline
from tidegate.engine.progress import BatchProgress
from tidegate.engine.summary import Summary
from tidegate.pipeline.duration import seconds

Mode = Literal["auto", "live", "lines", "json", "quiet"]
Clock = Callable[[], float]

_REMEMBERED = 60
_TREND_BATCHES = 10
_OTHER_COLUMNS = 46
"""Columns of the live view that are not graph: label, value, remark, gaps and frame."""


def lag_slope(history: Sequence[BatchProgress]) -> float | None:
    """Rows per second by which the lag grew over the last batches; None when it cannot be told."""
    recent = [progress for progress in history if progress.lag is not None][-_TREND_BATCHES:]
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    elapsed = (last.finished_at - first.finished_at).total_seconds()
    if elapsed <= 0 or first.lag is None or last.lag is None:
        return None
    return (last.lag - first.lag) / elapsed


def trend(history: Sequence[BatchProgress]) -> Literal["grows", "shrinks", "steady", "unknown"]:
    """Where the lag is going. A slope below 2 % of the input rate is noise."""
    slope = lag_slope(history)
    if slope is None:
        return "unknown"
    if abs(slope) <= max(1.0, 0.02 * history[-1].input_rate):
        return "steady"
    return "grows" if slope > 0 else "shrinks"


class View(Protocol):
    """Called once per batch, in order; `summarise` at most once, after the last batch."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def __call__(self, progress: BatchProgress) -> None: ...

    def summarise(self, summary: Summary) -> None: ...


def for_mode(mode: Mode = "auto", every: str | float = 3.0, stream: TextIO | None = None) -> View:
    """The view for a mode. `auto` is live on a terminal and lines elsewhere.

    `every` is the least time between two lines, as a duration or in seconds.
    """
    stream = sys.stdout if stream is None else stream
    if mode == "auto":
        mode = "live" if Console(file=stream).is_terminal and stream.isatty() else "lines"
    if mode == "live":
        return LiveView(Console(file=stream))
    if mode == "lines":
        return LinesView(stream, every=seconds(every) if isinstance(every, str) else every)
    if mode == "json":
        return JsonView(stream)
    return QuietView()


class QuietView:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __call__(self, progress: BatchProgress) -> None:
        return None

    def summarise(self, summary: Summary) -> None:
        return None


class JsonView(QuietView):
    """One JSON object per batch and line, and `{"summary": {...}}` as the last one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, progress: BatchProgress) -> None:
        self._write(progress.as_json())

    def summarise(self, summary: Summary) -> None:
        self._write({"summary": {item.name: getattr(summary, item.name) for item in fields(summary)}})

    def _write(self, value: Mapping[str, Any]) -> None:
        # Offsets may be of any type that a source likes.
        self._stream.write(json.dumps(value, default=_json_value, separators=(",", ":")) + "\n")
        self._stream.flush()


class LinesView(QuietView):
    """At most one plain line per `every` seconds, about the batches since the line before.

    The first batch gets a line at once; batches that no line has covered get theirs at the end.
    """

    def __init__(self, stream: TextIO, *, every: float = 3.0, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._history: deque[BatchProgress] = deque(maxlen=_REMEMBERED)
        self._rows = 0
        self._dead_letters = 0
        self._pending = False
        self._written_at: float | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pending:
            self._write()

    def __call__(self, progress: BatchProgress) -> None:
        self._history.append(progress)
        self._rows += progress.rows_in
        self._dead_letters += progress.dead_letters
        self._pending = True
        if self._written_at is None or self._clock() - self._written_at >= self._every:
            self._write()

    def summarise(self, summary: Summary) -> None:
        for label, value in _summary_rows(summary):
            self._line(f"{label}: {value}")

    def _write(self) -> None:
        last = self._history[-1]
        lag = "" if last.lag is None else f" | lag {count(last.lag)} ({trend(self._history)})"
        latency = (
            ""
            if last.latency_p50 is None
            else f" | latency {span(last.latency_p50)}, p99 {span(last.latency_p99)}"
        )
        limit = "" if last.limit is None else f" | limit {count(last.limit)}"
        dead_letters = f" | dead letters {count(self._dead_letters)}" if self._dead_letters else ""
        self._line(
            f"{last.finished_at:%H:%M:%S} {last.pipeline} batch {last.batch_id}"
            f" | {count(self._rows)} rows | in {rate(last.input_rate)}"
            f" | processing {rate(last.rows_per_second)}{lag}{latency}"
            f" | batch {span(last.batch_seconds)} of {span(last.interval_seconds)}"
            f" | parallelism {last.parallelism}{limit}{dead_letters}"
        )
        self._rows = 0
        self._pending = False
        self._written_at = self._clock()

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class LiveView:
    """A panel on the terminal that is drawn anew four times a second."""

    def __init__(self, console: Console | None = None, *, clock: Clock = time.monotonic) -> None:
        self._console = console or Console()
        self._clock = clock
        self._started_at = clock()
        self._seen_at = self._started_at
        self._history: deque[BatchProgress] = deque(maxlen=_REMEMBERED)
        self._rows_in = 0
        self._dead_letters = 0
        self._sinks: Counter[str] = Counter()
        self._waiting = Spinner("dots")
        self._live = Live(
            console=self._console, get_renderable=self.render, refresh_per_second=4, vertical_overflow="crop"
        )
        self._chatter = Chatter(self._above)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._chatter.__enter__()
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, traceback)
        self._chatter.__exit__(kind, error, traceback)

    def __call__(self, progress: BatchProgress) -> None:
        self._rows_in += progress.rows_in
        self._dead_letters += progress.dead_letters
        self._sinks.update(progress.sinks)
        self._seen_at = self._clock()
        self._history.append(progress)

    def summarise(self, summary: Summary) -> None:
        self._console.print(summary_table(summary))

    def render(self) -> RenderableType:
        """The panel as it is now, fit to the width of the console."""
        # Drawn by another thread than the one that adds batches.
        history = list(self._history)
        if not history:
            waited = span(round(self._clock() - self._started_at))
            self._waiting.update(text=f"starting Spark, waiting for the first batch: {waited}")
            return self._waiting
        last = history[-1]
        return Panel(
            Group(self._figures(history), Text(), self._facts(last), self._outputs()),
            title=Text(last.pipeline, style="bold"),
            title_align="left",
            subtitle=self._age(last),
            subtitle_align="right",
            border_style="red" if last.batch_seconds > 1.25 * last.interval_seconds else "cyan",
            padding=(0, 1),
            width=min(self._console.width, self._graph_width() + _OTHER_COLUMNS),
        )

    def _above(self, line: str) -> None:
        self._console.print(Text(line, style="dim"), soft_wrap=True)

    def _graph_width(self) -> int:
        return max(8, min(_REMEMBERED, self._console.width - _OTHER_COLUMNS))

    def _figures(self, history: Sequence[BatchProgress]) -> Table:
        """Label, value, remark, graph; the graph takes what the others leave of the width."""
        last = history[-1]
        graph = self._graph_width()
        plain = not self._console.encoding.startswith("utf")

        def line(values: Iterable[float | None], style: str, top: float = 0.0) -> Text:
            return Text(sparkline(values, width=graph, top=top, plain=plain), style=style)

        table = Table.grid(padding=(0, 2))
        table.add_column(width=11, style="dim", no_wrap=True)
        table.add_column(width=9, justify="right", style="bold", no_wrap=True)
        table.add_column(width=16, no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_row(
            "rate in", rate(last.input_rate), "", line((each.input_rate for each in history), "cyan")
        )
        table.add_row(
            "processing",
            rate(last.rows_per_second),
            f"{count(self._rows_in)} in all",
            line((each.rows_per_second for each in history), "blue"),
        )
        lag = "-" if last.lag is None else count(last.lag)
        table.add_row("lag", lag, _trend_text(history), line((each.lag for each in history), "yellow"))
        table.add_row(
            "latency p50",
            span(last.latency_p50),
            f"p99 {span(last.latency_p99)}",
            line((each.latency_p50 for each in history), "magenta"),
        )
        share = last.batch_seconds / last.interval_seconds if last.interval_seconds else 0.0
        colour = "red" if share > 1.25 else "yellow" if share > 1.0 else "green"
        batch_times = [each.batch_seconds for each in history]
        table.add_row(
            "batch time",
            span(last.batch_seconds),
            "",
            line(batch_times, colour, top=last.interval_seconds),
        )
        filled = min(graph, round(share * graph))
        bar = Text(("#" if plain else "█") * filled, style=colour)
        bar.append(("." if plain else "░") * (graph - filled), style="dim")
        table.add_row("", f"{share:.0%}", f"of {span(last.interval_seconds)}", bar)
        return table

    def _facts(self, last: BatchProgress) -> Text:
        facts = [f"parallelism {last.parallelism}"]
        if last.limit is not None:
            facts.append(f"limit {count(last.limit)} rows")
        if last.watermark is not None:
            behind = (last.finished_at - last.watermark).total_seconds()
            facts.append(f"watermark {span(max(0.0, behind))} behind")
        if last.tries > 1:
            facts.append(f"took {last.tries} tries")
        text = Text("  ".join(facts) + "  ")
        text.append(f"dead letters {count(self._dead_letters)}", style="red" if self._dead_letters else "")
        return text

    def _outputs(self) -> Text:
        lines = [
            Text.assemble(("→ ", "green"), name, (f"  {count(rows)} rows", "dim"))
            for name, rows in self._sinks.items()
        ]
        return Text("\n").join(lines)

    def _age(self, last: BatchProgress) -> Text:
        now = self._clock()
        text = Text(f"batch {last.batch_id}, {span(round(now - self._started_at))}", style="dim")
        silent = now - self._seen_at
        if silent > 3 * last.interval_seconds + 2:
            text.append(f", none for {span(round(silent))}", style="yellow")
        return text


def summary_table(summary: Summary) -> Table:
    """The end of a run, for people."""
    table = Table(title=summary.pipeline, title_justify="left", show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _summary_rows(summary):
        table.add_row(label, Text(value))
    return table


_STOPPED = {
    "signal": "stopped by signal; start it again and it goes on from here",
    "done": "the sources are at their end",
    "duration": "the time was up",
}


def _summary_rows(summary: Summary) -> list[tuple[str, str]]:
    rows = [
        ("batches", f"{summary.batches} in {span(summary.seconds)}"),
        ("rows in", f"{summary.rows_in:,} ({rate(summary.rows_per_second)})".replace(",", " ")),
        ("rows out", f"{summary.rows_out:,}".replace(",", " ")),
        ("dead letters", f"{summary.dead_letters:,}".replace(",", " ")),
        ("latency", f"p50 {span(summary.latency_p50)}, p99 {span(summary.latency_p99)}"),
        ("batch time", f"p50 {span(summary.batch_seconds_p50)}"),
        ("ended", _STOPPED[summary.stopped_by]),
    ]
    rows.extend((f"output of {name}", place) for name, place in summary.outputs.items())
    return rows


def _trend_text(history: Sequence[BatchProgress]) -> Text:
    slope = lag_slope(history) or 0.0
    return {
        "grows": Text(f"▲ {rate(abs(slope))}", style="red"),
        "shrinks": Text(f"▼ {rate(abs(slope))}", style="green"),
        "steady": Text("steady", style="dim"),
        "unknown": Text(),
    }[trend(history)]


def _json_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
