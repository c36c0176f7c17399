"""A store in Redis, which outlives the node: a new one takes the key groups that are as the log has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tidegate.errors import ConfigError, MissingExtraError, StateError
from tidegate.state.backends.store import Change, Id, Store
from tidegate.state.keys import Groups
from tidegate.state.table import NEVER

_AT_ONCE = 5_000
"""Fields in one command; a longer one would hold up other clients."""


class RedisStore(Store):
    """Per table and key group a hash (key to rows) and a sorted set (keys by the time they are due).

    All names begin with `prefix`: pipelines that share a server need one each.
    """

    shared = True

    def __init__(self, options: Mapping[str, str]) -> None:
        try:
            import redis
        except ImportError:
            raise MissingExtraError("redis", "the state backend redis") from None
        url = options.get("url")
        if not url:
            raise ConfigError(
                "the state backend redis needs the option url, such as redis://localhost:6379/0"
            )
        self._prefix = options.get("prefix", "tidegate")
        parts = urlsplit(url)
        self._place = f"{parts.hostname}:{parts.port or 6379}"  # without the password
        self._error: type[Exception] = redis.RedisError
        self._client: Any = redis.Redis.from_url(url)

    def versions(self, groups: Groups) -> dict[int, str]:
        if not groups:
            return {}
        wanted = sorted(groups)
        (found,) = self._run([("HMGET", f"{self._prefix}:versions", *wanted)])
        return {group: text.decode() for group, text in zip(wanted, found, strict=True) if text is not None}

    def get(self, table: str, ids: Sequence[Id]) -> list[bytes | None]:
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, (group, _) in enumerate(ids):
            places[group].append(place)
        asked: list[list[int]] = []
        commands: list[tuple[Any, ...]] = []
        for group, mine in places.items():
            for part in _parts(mine):
                asked.append(part)
                commands.append(("HMGET", self._rows(table, group), *(ids[place][1] for place in part)))
        found: list[bytes | None] = [None] * len(ids)
        for part, answer in zip(asked, self._run(commands), strict=True):
            for place, rows in zip(part, answer, strict=True):
                found[place] = rows
        return found

    def put(self, changes: Iterable[Change], versions: Mapping[int, str]) -> None:
        written: defaultdict[str, list[Any]] = defaultdict(list)
        removed: defaultdict[str, list[bytes]] = defaultdict(list)
        timed: defaultdict[str, list[Any]] = defaultdict(list)
        timeless: defaultdict[str, list[bytes]] = defaultdict(list)
        for table, group, key, rows, due in changes:
            if rows is None:
                removed[self._rows(table, group)].append(key)
            else:
                written[self._rows(table, group)] += [key, rows]
            if due == NEVER:
                timeless[self._dues(table, group)].append(key)
            else:
                timed[self._dues(table, group)] += [float(due), key]
        commands: list[tuple[Any, ...]] = []
        named = (("HSET", written), ("HDEL", removed), ("ZADD", timed), ("ZREM", timeless))
        for command, places in named:
            for place, arguments in places.items():
                commands += [(command, place, *part) for part in _parts(arguments)]
        if versions:
            fields = [part for item in versions.items() for part in item]
            commands.append(("HSET", f"{self._prefix}:versions", *fields))
        self._run(commands, whole=True)

    def due(self, table: str, groups: Groups, upto: int) -> list[Id]:
        # Scores are doubles: a time may have been rounded up.
        most = repr(float(np.nextafter(float(upto), np.inf)))
        ordered = sorted(groups)
        found = self._run([("ZRANGEBYSCORE", self._dues(table, group), "-inf", most) for group in ordered])
        return [(group, key) for group, keys in zip(ordered, found, strict=True) for key in keys]

    def passed(self, table: str, groups: Groups, closed: int) -> None:
        """`put` has seen to it."""

    def scan(self, table: str, groups: Groups) -> Iterator[bytes]:
        for group in sorted(groups):
            try:
                for _, rows in self._client.hscan_iter(self._rows(table, group), count=_AT_ONCE):
                    yield rows
            except self._error as error:
                raise self._failed(error) from error

    def drop(self, tables: Iterable[str], groups: Groups) -> None:
        commands: list[tuple[Any, ...]] = [("HDEL", f"{self._prefix}:versions", *groups)] if groups else []
        for table in tables:
            for group in groups:
                commands.append(("UNLINK", self._rows(table, group), self._dues(table, group)))
        self._run(commands, whole=True)

    def close(self) -> None:
        self._client.close()

    def _run(self, commands: Sequence[tuple[Any, ...]], *, whole: bool = False) -> list[Any]:
        """One round trip; `whole` for all or nothing."""
        if not commands:
            return []
        pipeline = self._client.pipeline(transaction=whole)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            answers: list[Any] = pipeline.execute()
        except self._error as error:
            raise self._failed(error) from error
        return answers

    def _failed(self, error: Exception) -> StateError:
        return StateError(f"Redis at {self._place} cannot be used: {error}; see that it runs and has memory")

    def _rows(self, table: str, group: int) -> str:
        return f"{self._prefix}:rows:{table}:{group}"

    def _dues(self, table: str, group: int) -> str:
        return f"{self._prefix}:dues:{table}:{group}"


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    # An even number, since some are pairs.
    for start in range(0, len(items), 2 * _AT_ONCE):
        yield items[start : start + 2 * _AT_ONCE]
