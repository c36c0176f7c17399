"""A store in Redis, which outlives the node: a new one takes the key groups that are as the log has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tidegate.errors import ConfigError, MissingExtraError, StateError
from tidegate.state.node.backends.store import Change, Id, Store
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import NEVER

_TRIES = 100
_AT_ONCE = 5_000
"""Fields in one command; a longer one would hold up other clients."""


class RedisStore(Store):
    """Per key group its version; per table and key group a hash (key to rows) and a sorted set (keys by the
    time they are due).

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
        self._conflict: type[Exception] = redis.WatchError
        self._client: Any = redis.Redis.from_url(url)

    def versions(self, groups: Groups) -> dict[int, str]:
        if not groups:
            return {}
        (found,) = self._run([self._asking(groups)])
        return _versions(groups, found)

    def get(self, table: str, ids: Sequence[Id]) -> tuple[list[bytes | None], dict[int, str]]:
        if not ids:
            return [], {}
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, (group, _) in enumerate(ids):
            places[group].append(place)
        groups = frozenset(places)
        asked: list[list[int]] = []
        commands = [self._asking(groups)]
        for group, mine in places.items():
            for part in _parts(mine):
                asked.append(part)
                commands.append(("HMGET", self._rows(table, group), *(ids[place][1] for place in part)))
        versions, *answers = self._run(commands)
        found: list[bytes | None] = [None] * len(ids)
        for part, answer in zip(asked, answers, strict=True):
            for place, rows in zip(part, answer, strict=True):
                found[place] = rows
        return found, _versions(groups, versions)

    def put(self, changes: Iterable[Change], before: Mapping[int, str], after: Mapping[int, str]) -> Groups:
        changed: defaultdict[int, list[Change]] = defaultdict(list)
        for change in changes:
            changed[change.group].append(change)
        fit = frozenset(before)
        for _ in range(_TRIES):
            if not fit:
                return fit
            with self._client.pipeline() as pipeline:
                try:
                    # From here on another process that changes one of these versions makes `execute` fail.
                    pipeline.watch(*map(self._version, fit))
                    versions = _versions(fit, pipeline.execute_command(*self._asking(fit)))
                    fit = frozenset(group for group in fit if versions.get(group, "") == before[group])
                    pipeline.multi()
                    for group in fit:
                        for command in self._changing(changed[group]):
                            pipeline.execute_command(*command)
                        pipeline.execute_command("SET", self._version(group), after[group])
                    pipeline.execute()
                    return fit
                except self._conflict:
                    continue
                except self._error as error:
                    raise self._failed(error) from error
        raise StateError(f"Redis at {self._place}: other clients keep changing the same key groups")

    def due(self, table: str, groups: Groups, upto: int) -> tuple[list[Id], dict[int, str]]:
        if not groups:
            return [], {}
        # Scores are doubles: a time may have been rounded up.
        most = repr(float(np.nextafter(float(upto), np.inf)))
        ordered = sorted(groups)
        ranges = [("ZRANGEBYSCORE", self._dues(table, group), "-inf", most) for group in ordered]
        versions, *found = self._run([self._asking(groups), *ranges])
        ids = [(group, key) for group, keys in zip(ordered, found, strict=True) for key in keys]
        return ids, _versions(groups, versions)

    def scan(self, table: str, group: int) -> list[bytes]:
        try:
            found = dict(self._client.hscan_iter(self._rows(table, group), count=_AT_ONCE))
        except self._error as error:
            raise self._failed(error) from error
        return list(found.values())

    def drop(self, tables: Iterable[str], groups: Groups) -> None:
        commands: list[tuple[Any, ...]] = [("DEL", *map(self._version, groups))] if groups else []
        for table in tables:
            for group in groups:
                commands.append(("UNLINK", self._rows(table, group), self._dues(table, group)))
        self._run(commands)

    def close(self) -> None:
        self._client.close()

    def _run(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One round trip, in which nobody else gets between."""
        pipeline = self._client.pipeline(transaction=True)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            answers: list[Any] = pipeline.execute()
        except self._error as error:
            raise self._failed(error) from error
        return answers

    def _asking(self, groups: Groups) -> tuple[Any, ...]:
        return ("MGET", *map(self._version, sorted(groups)))

    def _changing(self, changes: Iterable[Change]) -> Iterator[tuple[Any, ...]]:
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
        named = (("HSET", written), ("HDEL", removed), ("ZADD", timed), ("ZREM", timeless))
        for command, places in named:
            for place, arguments in places.items():
                for part in _parts(arguments):
                    yield (command, place, *part)

    def _failed(self, error: Exception) -> StateError:
        return StateError(
            f"Redis at {self._place} cannot be used: {error}; check that it is running and has memory left"
        )

    def _version(self, group: int) -> str:
        return f"{self._prefix}:version:{group}"

    def _rows(self, table: str, group: int) -> str:
        return f"{self._prefix}:rows:{table}:{group}"

    def _dues(self, table: str, group: int) -> str:
        return f"{self._prefix}:dues:{table}:{group}"


def _versions(groups: Groups, found: Sequence[bytes | None]) -> dict[int, str]:
    pairs = zip(sorted(groups), found, strict=True)
    return {group: text.decode() for group, text in pairs if text is not None}


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    # An even number, since some are pairs.
    for start in range(0, len(items), 2 * _AT_ONCE):
        yield items[start : start + 2 * _AT_ONCE]
