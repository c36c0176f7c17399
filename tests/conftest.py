"""Fixtures for everything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests; with the Kafka connector, since jars can only be given at the start."""
    from tidegate.engine import session
    from tidegate.sinks import Kafka

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
