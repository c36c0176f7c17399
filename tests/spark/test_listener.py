"""What Spark reports of a batch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tidegate.sources.source import Position
from tidegate.spark.listener import Report


def test_a_report_is_read_from_its_text() -> None:
    told: dict[str, Any] = {
        "batchId": 7,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "durationMs": {"triggerExecution": 250, "walCommit": 4},
        "sources": [
            {"startOffset": {"offset": 1}, "endOffset": {"offset": 5}, "latestOffset": {"offset": 9}},
            {"startOffset": None, "endOffset": 3, "latestOffset": "none"},
            {"endOffset": 3},
        ],
    }
    assert Report.from_json(told) == Report(
        batch_id=7,
        begun=datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
        seconds={"triggerExecution": 0.25, "walCommit": 0.004},
        positions=[
            Position({"offset": 1}, {"offset": 5}, {"offset": 9}),
            Position(None, 3),
            Position(None, 3),
        ],
    )
