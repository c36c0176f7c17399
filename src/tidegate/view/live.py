"""What a person sees of a running pipeline on a terminal."""

from __future__ import annotations

import textwrap
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tidegate.run.progress import BatchProgress
from tidegate.run.summary import Summary, Tally
from tidegate.view.figures import across_hosts, amount, backlog, count, rate, span, sparkline
from tidegate.view.silence import silences
from tidegate.view.stderr_capture import StderrCapture
from tidegate.view.totals import summary_table
from tidegate.view.trend import lag_slope, trend
from tidegate.view.view import Clock, View

_REMEMBERED = 60
_OTHER_COLUMNS = 46
"""Columns of the live view that are not graph: label, value, remark, gaps and frame."""
_FRAME = 4
"""Columns of the frame and the space beside it."""
_NO_BREAK = "\N{NO-BREAK SPACE}"


class LiveView(View):
    """A panel on the terminal, redrawn four times a second."""

    def __init__(self, console: Console | None = None, *, clock: Clock = time.monotonic) -> None:
        self._console = console or Console()
        self._clock = clock
        self._started_at = clock()
        self._seen_at = self._started_at
        self._history: deque[BatchProgress] = deque(maxlen=_REMEMBERED)
        self._first: BatchProgress | None = None
        self._tally = Tally()
        self._sinks: Counter[str] = Counter()
        self._waiting = Spinner("dots")
        self._live = Live(
            console=self._console, get_renderable=self.render, refresh_per_second=4, vertical_overflow="crop"
        )
        self._stderr = StderrCapture(self._above)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._stderr.__enter__()
        self._live.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        # Without a batch, a leftover spinner would only clutter the error or the summary.
        self._live.transient = not self._history
        self._live.stop()
        self._stderr.__exit__(*failure)

    def __call__(self, progress: BatchProgress) -> None:
        self._tally(progress)
        self._sinks.update(progress.sinks)
        self._seen_at = self._clock()
        self._first = self._first or progress
        self._history.append(progress)

    def summarise(self, summary: Summary) -> None:
        self._console.print(summary_table(summary))

    def render(self) -> RenderableType:
        """The panel as it is now, fit to the width of the console."""
        # Drawn by a thread other than the one that adds batches.
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
            width=self._width(),
        )

    def _above(self, line: str) -> None:
        self._console.print(Text(line, style="dim"), soft_wrap=True)

    def _width(self) -> int:
        return min(self._console.width, self._graph_width() + _OTHER_COLUMNS)

    def _graph_width(self) -> int:
        return max(8, min(_REMEMBERED, self._console.width - _OTHER_COLUMNS))

    def _figures(self, history: Sequence[BatchProgress]) -> Table:
        """Label, value, remark, graph; the graph takes what the others leave of the width."""
        last = history[-1]
        graph = self._graph_width()
        plain = not self._console.encoding.startswith("utf")

        # The first batch starts workers and compiles code: next to it, all others would look alike.
        drawn = [each for each in history if each is not self._first] or history

        def line(figure: Callable[[BatchProgress], float | None], style: str, top: float = 0.0) -> Text:
            return Text(sparkline(map(figure, drawn), width=graph, top=top, plain=plain), style=style)

        table = Table.grid(padding=(0, 2))
        table.add_column(width=11, style="dim", no_wrap=True)
        table.add_column(width=9, justify="right", style="bold", no_wrap=True)
        table.add_column(width=16, no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_row("rate in", rate(last.input_rate), "", line(lambda each: each.input_rate, "cyan"))
        table.add_row(
            "processing",
            rate(last.rows_per_second),
            f"{count(self._tally.rows_in)} in all",
            line(lambda each: each.rows_per_second, "blue"),
        )
        lag, *size = backlog(last.lag, last.waiting_files, last.waiting_bytes).split(", ")
        waiting = line(lambda each: each.waiting_files if each.lag is None else each.lag, "yellow")
        table.add_row("lag", lag, Text(size[0]) if size else _trend_text(history), waiting)
        table.add_row(
            "latency p50",
            span(last.latency_p50),
            f"p99 {span(last.latency_p99)}",
            line(lambda each: each.latency_p50, "magenta"),
        )
        share = last.batch_seconds / last.interval_seconds if last.interval_seconds else 0.0
        colour = "red" if share > 1.25 else "yellow" if share > 1.0 else "green"
        table.add_row(
            "batch time",
            span(last.batch_seconds),
            "",
            line(lambda each: each.batch_seconds, colour, top=last.interval_seconds),
        )
        filled = min(graph, round(share * graph))
        bar = Text(("#" if plain else "█") * filled, style=colour)
        bar.append(("." if plain else "░") * (graph - filled), style="dim")
        table.add_row("", f"{share:.0%}", f"of {span(last.interval_seconds)}", bar)
        return table

    def _facts(self, last: BatchProgress) -> Text:
        facts = [f"parallelism {last.parallelism}"]
        if last.state_nodes:
            facts.append(f"nodes {last.state_nodes}" + (f" ({last.rescale})" if last.rescale else ""))
        if last.limit is not None:
            facts.append(f"limit {count(last.limit)} rows")
        if last.catching_up is not None:
            facts.append(f"catching up in batches of {span(last.catching_up)}")
        if last.watermark is not None:
            behind = (last.finished_at - last.watermark).total_seconds()
            facts.append(f"watermark {span(max(0.0, behind))} behind")
        if last.state_rows:
            facts.append(f"state {count(last.state_rows)} rows, {amount(last.state_bytes)}")
        if last.state_wire_remote:
            facts.append(across_hosts(last.state_wire_remote, last.state_wire))
        facts += silences(last)
        if self._tally.late:
            facts.append(f"late {count(self._tally.late)}")
        if last.tries > 1:
            facts.append(f"took {last.tries} tries")
        lost = f"dead letters {count(self._tally.dead_letters)}"
        # Lines break between facts, never within one.
        unbroken = "  ".join(each.replace(" ", _NO_BREAK) for each in (*facts, lost))
        text = Text(textwrap.fill(unbroken, self._width() - _FRAME).replace(_NO_BREAK, " "))
        if self._tally.dead_letters:
            text.highlight_words([lost], "red")
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


def _trend_text(history: Sequence[BatchProgress]) -> Text:
    slope = lag_slope(history) or 0.0
    return {
        "grows": Text(f"▲ {rate(abs(slope))}", style="red"),
        "shrinks": Text(f"▼ {rate(abs(slope))}", style="green"),
        "steady": Text("steady", style="dim"),
        "unknown": Text(),
    }[trend(history)]
