"""Batches for what shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidegate.run.progress import BatchProgress

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def batch(number: int, *, lag: int | None = 0, dead_letters: int = 0, took: float = 0.64) -> BatchProgress:
    """Batch `number` of a pipeline that takes 1.25 M rows a second."""
    finished = START + timedelta(seconds=number)
    return BatchProgress(
        pipeline="temperature",
        batch_id=number,
        finished_at=finished,
        cut={"sensors": {"start": {"0": number}, "end": {"0": number + 1}}},
        rows_in=1_250_000,
        rows_out=400_000,
        dead_letters=dead_letters,
        input_rate=1_250_000.0,
        rows_per_second=1_250_000 / took,
        batch_seconds=took,
        interval_seconds=1.0,
        phases={"write": 0.5},
        lag=lag,
        limit=1_300_000,
        latency_p50=0.82,
        latency_p99=1.347,
        watermark=finished - timedelta(seconds=5),
        parallelism=7,
        sinks={"hot": 400_000},
    )
