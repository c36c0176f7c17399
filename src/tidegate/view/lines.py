"""What a file, a log or a program gets of a running pipeline: lines of text or JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import fields
from typing import Any, Self, TextIO

from tidegate.run.progress import BatchProgress
from tidegate.run.summary import Summary
from tidegate.view.figures import count, rate, span
from tidegate.view.totals import summary_rows
from tidegate.view.trend import trend
from tidegate.view.view import Clock, View

_REMEMBERED = 60


class Reader:
    """Whoever reads our lines. When it goes away (`| head`), the run is asked to end.

    Nothing more is written then.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def tell(self, line: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._gone = True
            self._drain()
            # Only where a run listens for it: after the run, or in a thread, it would kill the process.
            if callable(signal.getsignal(signal.SIGTERM)):
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGTERM)

    def _drain(self) -> None:
        """What is still in the buffer would fail once more when Python ends and flushes it."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


class JsonView(View):
    """One JSON object per batch and line, and `{"summary": {...}}` as the last one.

    Whatever else is printed during the run, by a console sink, a user's function or Java, goes to stderr.
    """

    def __init__(self, stream: TextIO) -> None:
        self._others = ExitStack()
        self._ours = stream
        self._shared = stream if stream is sys.__stdout__ else None
        if self._shared is not None:
            # Other processes write there by its number, which they inherit: ours needs one of its own.
            self._ours = os.fdopen(os.dup(self._shared.fileno()), "w", encoding=self._shared.encoding)
        self._reader = Reader(self._ours)

    def __enter__(self) -> Self:
        self._others.enter_context(redirect_stdout(sys.stderr))
        if self._shared is not None:
            self._shared.flush()
            os.dup2(sys.stderr.fileno(), self._shared.fileno())
            self._others.callback(os.dup2, self._ours.fileno(), self._shared.fileno())
        return self

    def __exit__(self, *failure: object) -> None:
        self._others.close()

    def __call__(self, progress: BatchProgress) -> None:
        self._write(progress.as_json())

    def summarise(self, summary: Summary) -> None:
        self._write({"summary": {item.name: getattr(summary, item.name) for item in fields(summary)}})

    def _write(self, value: Mapping[str, Any]) -> None:
        # Offsets may be of any type that a source likes.
        self._reader.tell(json.dumps(value, default=_json_value, separators=(",", ":")))


class LinesView(View):
    """At most one plain line per `every` seconds, about the batches since the line before.

    The first batch gets a line at once; batches that no line has covered get theirs at the end.
    """

    def __init__(self, stream: TextIO, *, every: float = 3.0, clock: Clock = time.monotonic) -> None:
        self._reader = Reader(stream)
        self._every = every
        self._clock = clock
        self._history: deque[BatchProgress] = deque(maxlen=_REMEMBERED)
        self._rows = 0
        self._dead_letters = 0
        self._late = 0
        self._pending = False
        self._written_at: float | None = None

    def __exit__(self, *failure: object) -> None:
        if self._pending:
            self._write()

    def __call__(self, progress: BatchProgress) -> None:
        self._history.append(progress)
        self._rows += progress.rows_in
        self._dead_letters += progress.dead_letters
        self._late += progress.late
        self._pending = True
        if self._written_at is None or self._clock() - self._written_at >= self._every:
            self._write()

    def summarise(self, summary: Summary) -> None:
        for label, value in summary_rows(summary):
            self._reader.tell(f"{label}: {value}")

    def _write(self) -> None:
        last = self._history[-1]
        going = trend(self._history)
        lag = (
            "-"
            if last.lag is None
            else count(last.lag)
            if going == "unknown"
            else f"{count(last.lag)} ({going})"
        )
        latency = (
            ""
            if last.latency_p50 is None
            else f" | latency {span(last.latency_p50)}, p99 {span(last.latency_p99)}"
        )
        limit = "" if last.limit is None else f" | limit {count(last.limit)}"
        dead_letters = f" | dead letters {count(self._dead_letters)}" if self._dead_letters else ""
        late = f" | late {count(self._late)}" if self._late else ""
        state = f" | state {count(last.state_rows)} rows" if last.state_rows else ""
        self._reader.tell(
            f"{last.finished_at:%H:%M:%S} {last.pipeline} batch {last.batch_id}"
            f" | {count(self._rows)} rows | in {rate(last.input_rate)}"
            f" | processing {rate(last.rows_per_second)} | lag {lag}{latency}"
            f" | batch {span(last.batch_seconds)} of {span(last.interval_seconds)}"
            f" | parallelism {last.parallelism}{limit}{state}{late}{dead_letters}"
        )
        self._rows = 0
        self._pending = False
        self._written_at = self._clock()


def _json_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
