"""Fixtures for everything."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import tidegate as tg
from tests.java import DRIVER_JAVA, SMALL
from tidegate import config
from tidegate.run.progress import Listener
from tidegate.run.summary import Summary
from tidegate.testing.servers import S3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., tuple[Summary, list[tg.BatchProgress]]]
_SEED = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--batches", type=int, default=100_000, help="batches of the soak without Spark")


def pytest_configure(config: pytest.Config) -> None:
    # Tests may be started with nohup; the pipelines that they start are not.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # How long an example takes says more about the machine than about the code.
    hypothesis.settings.register_profile("tests", deadline=None, print_blob=True)
    hypothesis.settings.load_profile("tests")
    # Taken out, since a pipeline would refuse a variable that is none of its settings.
    seed = os.environ.pop("TIDEGATE_SEED", f"{date.today():%Y%m%d}")
    config.stash[_SEED] = getattr(config, "workerinput", {}).get("seed", seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Another process of pytest samples as this one does."""
    node.workerinput["seed"] = node.config.stash[_SEED]


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[_SEED]} (another sample each day; TIDEGATE_SEED=... repeats one)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests first: several processes share them, and none is to begin one at the end."""
    longest: dict[Path, int] = {}
    for item in items:
        marks = (mark for mark in ("spark", "slow", "chaos") if item.get_closest_marker(mark))
        longest[item.path] = max(longest.get(item.path, 0), sum(1 for _ in marks))
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """What a test samples by: the same on one day, or for one TIDEGATE_SEED."""
    seed = request.config.stash[_SEED]
    print(f"TIDEGATE_SEED={seed} repeats this")  # noqa: T201 - pytest shows it when the test fails
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests; with the Kafka connector, since jars can only be given at the start."""
    from tidegate.sinks import Kafka
    from tidegate.spark import session

    conf = {
        "spark.python.daemon.module": "tests.preloaded",
        DRIVER_JAVA: SMALL,
    }
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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    """An S3-speaking server for all tests that ask for one."""
    from tidegate.testing.servers import s3

    with s3() as server:
        yield server


@pytest.fixture
def s3_place(s3_server: S3, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in the bucket that no other test has, with the credentials for it in the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.bucket}/{request.node.name}"


@pytest.fixture
def s3_tasks(s3_place: str, s3_server: S3, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, with the credentials in the environment of tasks, too, as that of their executor has them."""
    for name, value in s3_server.environment.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return s3_place


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Run a pipeline until it is done, with a short interval and its checkpoint in `tmp_path`."""

    def go(
        pipeline: tg.Pipeline,
        *,
        listeners: Sequence[Listener] = (),
        take_over: bool = False,
        **overrides: Any,
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
        summary = pipeline.run(
            config=effective, listeners=[told.append, *listeners], until_done=True, take_over=take_over
        )
        return summary, told

    return go
