"""What a file or a log gets of a running pipeline: plain lines."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TextIO

from tidegate.run.progress import BatchProgress
from tidegate.run.summary import Summary, Tally
from tidegate.view.figures import across_hosts, backlog, count, rate, span
from tidegate.view.output import Output
from tidegate.view.silence import silences
from tidegate.view.totals import summary_rows
from tidegate.view.trend import trend
from tidegate.view.view import Clock, View

_REMEMBERED = 60


class LinesView(View):
    """At most one plain line per `every` seconds, about the batches since the line before.

    The first batch gets a line at once; batches that no line has covered get theirs when it is time, or at
    the end.
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
        self._change = threading.Lock()
        self._timer: threading.Timer | None = None
        """Writes the line that is pending, should no batch follow."""

    def __exit__(self, *failure: object) -> None:
        self._write_pending()

    def __call__(self, progress: BatchProgress) -> None:
        with self._change:
            self._history.append(progress)
            self._rows += progress.rows_in
            self._tally(progress)
            self._pending = True
            now = self._clock()
            left = 0.0 if self._written_at is None else self._written_at + self._every - now
            if left <= 0:
                self._write()
            elif self._timer is None:
                self._timer = threading.Timer(left, self._write_pending)
                self._timer.daemon = True
                self._timer.start()

    def summarise(self, summary: Summary) -> None:
        for label, value in summary_rows(summary):
            self._output.write(f"{label}: {value}")

    def _write_pending(self) -> None:
        with self._change:
            if self._pending:
                self._write()

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
        if last.state_wire_remote:
            parts.append(across_hosts(last.state_wire_remote, last.state_wire))
        parts += silences(last)
        if self._tally.late:
            parts.append(f"late {count(self._tally.late)}")
        if self._tally.dead_letters:
            parts.append(f"dead letters {count(self._tally.dead_letters)}")
        self._output.write(" | ".join(parts))
        self._rows = 0
        self._pending = False
        self._written_at = self._clock()
