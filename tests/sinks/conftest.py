"""Every sink with a place to look at: what a reader sees of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tidegate as tg
from tidegate.errors import SinkError
from tidegate.sinks.sink import Attempt, Sink, SinkWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """A sink and the eyes of its readers."""

    name: str
    sink: Sink
    visible: Callable[[], Rows]
    """The rows that a reader sees now, in no particular order; empty before the first batch."""


PLACES = [
    "files-parquet",
    "files-json",
    pytest.param("files-parquet-s3", marks=pytest.mark.s3),
    pytest.param("files-json-s3", marks=pytest.mark.s3),
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("kafka", marks=pytest.mark.kafka),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name: str = request.param
    if name.endswith("-s3"):
        return _files(name, request.getfixturevalue("s3_tasks"))
    if name.startswith("files"):
        return _files(name, str(tmp_path / "out"))
    if name == "postgres":
        return _postgres(request.getfixturevalue("postgres_dsn"))
    return _kafka(request.getfixturevalue("kafka_bootstrap"))


@pytest.fixture
def never(request: pytest.FixtureRequest, place: Place) -> Callable[..., None]:
    """Mark what a sink can never do, because the system behind it cannot."""

    def mark(*names: str, why: str) -> None:
        if place.name in names:
            request.applymarker(pytest.mark.xfail(reason=f"never: {why}", strict=True))

    return mark


@pytest.fixture
def writer(place: Place, spark: SparkSession) -> SinkWriter:
    """The sink of `place`, opened as at the start of a first run."""
    opened = place.sink.open(spark, pipeline="test")
    opened.recover(-1, None, generation=1)
    return opened


@pytest.fixture
def numbers(spark: SparkSession) -> Callable[..., DataFrame]:
    """Rows with the ids of a range, in a few partitions."""
    return lambda start, stop: spark.range(start, stop, numPartitions=3)


@pytest.fixture
def batch() -> Callable[..., Attempt]:
    """Attempts at batches, by their number."""
    return lambda batch_id, number=0, generation=1: Attempt(batch_id, generation, number)


def _files(name: str, path: str) -> Place:
    def visible() -> Rows:
        try:
            rows: Rows = tg.read(path).to_pylist()
        except SinkError:
            return []
        return rows

    file_format: Any = name.split("-")[1]
    return Place(name, tg.sinks.Files(path, format=file_format), visible)


def _postgres(dsn: str) -> Place:
    import psycopg
    from psycopg.rows import dict_row

    table = f"rows_{uuid4().hex}"

    def visible() -> Rows:
        with psycopg.connect(dsn, row_factory=dict_row) as connection:
            try:
                return connection.execute(f"select * from {table}".encode()).fetchall()
            except psycopg.errors.UndefinedTable:
                return []

    return Place("postgres", tg.sinks.Postgres(dsn, table), visible)


def _kafka(bootstrap: str) -> Place:
    from tidegate.sinks.kafka import read_committed

    topic = f"rows-{uuid4().hex}"

    def visible() -> Rows:
        return [json.loads(message.value or b"null") for message in read_committed(bootstrap, topic)]

    return Place("kafka", tg.sinks.Kafka(bootstrap, topic, partitions=3), visible)
