"""What a file or a log gets of a running pipeline: plain lines."""

from __future__ import annotations

import time
from collections import deque
from typing import TextIO

from tidegate.run.progress import BatchProgress
from tidegate.run.summary import Summary, Tally
from tidegate.view.figures import backlog, count, rate, span
from tidegate.view.output import Output
from tidegate.view.silence import silences
from tidegate.view.totals import summary_rows
from tidegate.view.trend import trend
from tidegate.view.view import Clock, View

_REMEMBERED = 60


class LinesView(View):
    """At most one plain line per `every` seconds, about the batches since the line before.

    The first batch gets a line at once; batches that no line has covered get theirs at the end.
    """

    def __init__(self, stream: TextIO, *, every: float = 3.0, clock: Clock = time.monotonic) -> None:
        self._output = Output(stream)
        self._every = every
        self._clock = clock
        self._history: deque[BatchProgress] = deque(maxlen=_REMEMBERED)
        self._rows = 0
        self._tally = Tally()
        self._pending = False
        self._written_at: float | None = None

    def __exit__(self, *failure: object) -> None:
        if self._pending:
            self._write()

    def __call__(self, progress: BatchProgress) -> None:
        self._history.append(progress)
        self._rows += progress.rows_in
        self._tally(progress)
        self._pending = True
        if self._written_at is None or self._clock() - self._written_at >= self._every:
            self._write()

    def summarise(self, summary: Summary) -> None:
        for label, value in summary_rows(summary):
            self._output.write(f"{label}: {value}")

    def _write(self) -> None:
        last = self._history[-1]
        going = trend(self._history)
        lag = backlog(last.lag, last.waiting_files, last.waiting_bytes)
        parts = [
            f"{last.finished_at:%H:%M:%S} {last.pipeline} batch {last.batch_id}",
            f"{count(self._rows)} rows",
            f"in {rate(last.input_rate)}",
            f"processing {rate(last.rows_per_second)}",
            f"lag {lag}" if last.lag is None or going == "unknown" else f"lag {lag} ({going})",
        ]
        if last.latency_p50 is not None:
            parts.append(f"latency {span(last.latency_p50)}, p99 {span(last.latency_p99)}")
        parts.append(f"batch {span(last.batch_seconds)} of {span(last.interval_seconds)}")
        parts.append(f"parallelism {last.parallelism}")
        if last.limit is not None:
            parts.append(f"limit {count(last.limit)}")
        if last.catching_up is not None:
            parts.append(f"catching up in batches of {span(last.catching_up)}")
        if last.state_rows:
            parts.append(f"state {count(last.state_rows)} rows")
        parts += silences(last)
        if self._tally.late:
            parts.append(f"late {count(self._tally.late)}")
        if self._tally.dead_letters:
            parts.append(f"dead letters {count(self._tally.dead_letters)}")
        self._output.write(" | ".join(parts))
        self._rows = 0
        self._pending = False
        self._written_at = self._clock()
