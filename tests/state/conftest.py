"""Shards, and servers that state may be kept in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.state.shard_kit import Make
from tidegate.state.log.storage import Local, Storage
from tidegate.state.node.shard import Shard
from tidegate.testing.servers import S3


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis server for all tests that ask for one; each takes a prefix of its own."""
    from tidegate.testing.servers import redis

    with redis() as url:
        yield url


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
def make(tmp_path: Path) -> Iterator[Make]:
    """Shards on one folder, closed at the end."""
    made: list[Shard] = []

    def shard(storage: Storage | None = None, **settings: object) -> Shard:
        name = f"n{len(made)}"
        place = storage or Local(tmp_path / "log")
        made.append(Shard(place, name=name, scratch=tmp_path / name, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield shard
    for one in made:
        one.close()
