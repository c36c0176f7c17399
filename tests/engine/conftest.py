"""Runs of pipelines in the session of the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidegate as tg
from tidegate import config
from tidegate.engine.progress import Listener
from tidegate.engine.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., tuple[Summary, list[tg.BatchProgress]]]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Run a pipeline until it is done, with a short interval and its checkpoint in `tmp_path`."""

    def go(
        pipeline: tg.Pipeline, *, listeners: Sequence[Listener] = (), **overrides: Any
    ) -> tuple[Summary, list[tg.BatchProgress]]:
        settings = {
            "engine.interval": "100 ms",
            "engine.checkpoint": str(tmp_path / "checkpoint"),
            "engine.retry_wait": "10 ms",
            "admission.initial_rows": 1000,
            **{name.replace("__", "."): value for name, value in overrides.items()},
        }
        told: list[tg.BatchProgress] = []
        effective = config.load(code=pipeline.config, environ={}, overrides=settings)
        summary = pipeline.run(config=effective, listeners=[told.append, *listeners], until_done=True)
        return summary, told

    return go
