"""Shards, and a server that state may be kept in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.state.shard_kit import Make
from tidegate.state.node.shard import Shard
from tidegate.storage.local import Local
from tidegate.storage.storage import Storage


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis server for all tests that ask for one; each takes a prefix of its own."""
    from tidegate.testing.servers import redis

    with redis() as url:
        yield url


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
