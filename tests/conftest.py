"""Fixtures for everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidegate as tg
from tidegate import config
from tidegate.run.progress import Listener
from tidegate.run.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., tuple[Summary, list[tg.BatchProgress]]]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests; with the Kafka connector, since jars can only be given at the start."""
    from tidegate.sinks import Kafka
    from tidegate.spark import session

    conf = {"spark.python.daemon.module": "tests.preloaded"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        started = session.start("tests", master="local[2]", packages=Kafka.packages, conf=conf)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """A PostgreSQL server for all tests that ask for one."""
    from tidegate.testing.servers import postgres

    with postgres() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """A Kafka broker for all tests that ask for one."""
    from tidegate.testing.servers import kafka

    with kafka() as bootstrap:
        yield bootstrap


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
