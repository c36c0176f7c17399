"""Rows of emulated sensors, and what a plain computation makes of them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tidegate as tg

START = datetime(2024, 1, 1, tzinfo=UTC)


def sensors(rows: int, *, sensors: int = 50, seed: int = 1) -> tg.sources.Sensors:
    return tg.sources.Sensors(
        sensors=sensors, rate=tg.sources.Constant(100), rows=rows, start=START.isoformat(), seed=seed
    )


def rows_of(source: tg.sources.Sensors, count: int) -> list[dict[str, Any]]:
    first = source.first_micros
    assert first is not None
    rows: list[dict[str, Any]] = source.batch(0, count, start=first).to_pylist()
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tg.read(path).to_pylist()
    return rows


def latest(rows: list[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """Of rows that replace one another, the last of each key; files are read in the order of batches."""
    return {row[key]: row for row in rows}


def windows(rows: list[dict[str, Any]], size: float) -> dict[tuple[int, datetime], int]:
    found: Counter[tuple[int, datetime]] = Counter()
    for row in rows:
        passed = (row["timestamp"] - START).total_seconds()
        found[row["id"], START + timedelta(seconds=passed // size * size)] += 1
    return found
