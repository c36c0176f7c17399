"""Fixtures for everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests; with the Kafka connector, since jars can only be given at the start."""
    from tidegate.engine import session
    from tidegate.sinks import Kafka

    started = session.start("tests", master="local[2]", packages=Kafka.packages)
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
