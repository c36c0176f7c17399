"""A whole run in a few figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tidegate.run.progress import BatchProgress

StoppedBy = Literal["signal", "done", "duration"]
_KEPT = 10_000
"""Batches that the medians look back on: a run may last for months."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did. Times are in seconds; latencies are None without an event time."""

    pipeline: str
    batches: int
    rows_in: int
    rows_out: int
    dead_letters: int
    seconds: float
    rows_per_second: float
    latency_p50: float | None
    latency_p99: float | None
    batch_seconds_p50: float | None
    outputs: Mapping[str, str]
    """Sink step -> where its rows are."""
    stopped_by: StoppedBy
    dead_letters_path: str | None = None
    """Where records lie that could not be read; None when there were none."""
    late: int = 0
    """Rows that came after their window had been closed."""
    lag: int | None = None
    """Rows that waited in the sources when the last batch began and were not in it; None when unknown."""
    waiting_files: int | None = None
    """The same in files, of `Files` sources; None without such a source."""
    waiting_bytes: int | None = None


class Tally:
    """Adds batches up. A listener."""

    def __init__(self) -> None:
        self.batches = self.rows_in = self.rows_out = self.dead_letters = self.late = 0
        self.lag: int | None = None
        self.waiting_files: int | None = None
        self.waiting_bytes: int | None = None
        self._latest: list[tuple[float, float | None, float | None]] = []

    def __call__(self, progress: BatchProgress) -> None:
        self.batches += 1
        self.rows_in += progress.rows_in
        self.rows_out += progress.rows_out
        self.dead_letters += progress.dead_letters
        self.late += progress.late
        self.lag = progress.lag
        self.waiting_files, self.waiting_bytes = progress.waiting_files, progress.waiting_bytes
        self._latest.append((progress.batch_seconds, progress.latency_p50, progress.latency_p99))
        del self._latest[:-_KEPT]

    def summary(
        self,
        pipeline: str,
        *,
        seconds: float,
        outputs: Mapping[str, str],
        stopped_by: StoppedBy,
        dead_letters_path: str,
    ) -> Summary:
        return Summary(
            pipeline=pipeline,
            batches=self.batches,
            rows_in=self.rows_in,
            rows_out=self.rows_out,
            dead_letters=self.dead_letters,
            seconds=seconds,
            rows_per_second=self.rows_in / seconds if seconds > 0 else 0.0,
            latency_p50=_median([p50 for _, p50, _ in self._latest if p50 is not None]),
            latency_p99=_median([p99 for _, _, p99 in self._latest if p99 is not None]),
            batch_seconds_p50=_median([length for length, _, _ in self._latest]),
            outputs=outputs,
            stopped_by=stopped_by,
            dead_letters_path=dead_letters_path if self.dead_letters else None,
            late=self.late,
            lag=self.lag,
            waiting_files=self.waiting_files,
            waiting_bytes=self.waiting_bytes,
        )


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
