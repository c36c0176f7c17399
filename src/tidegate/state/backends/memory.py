"""A store in plain dictionaries: the twin that the others are compared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidegate.state.backends.store import Change, Id, Store
from tidegate.state.keys import Groups
from tidegate.state.table import NEVER


class MemoryStore(Store):
    """Everything in this process."""

    def __init__(self) -> None:
        self._versions: dict[int, str] = {}
        self._rows: defaultdict[tuple[str, int], dict[bytes, bytes]] = defaultdict(dict)
        self._dues: defaultdict[tuple[str, int], dict[bytes, int]] = defaultdict(dict)

    def versions(self, groups: Groups) -> dict[int, str]:
        return {group: self._versions[group] for group in groups if group in self._versions}

    def get(self, table: str, ids: Sequence[Id]) -> list[bytes | None]:
        return [self._rows[table, group].get(key) for group, key in ids]

    def put(self, changes: Iterable[Change], versions: Mapping[int, str]) -> None:
        for table, group, key, rows, due in changes:
            place = (table, group)
            if rows is None:
                self._rows[place].pop(key, None)
            else:
                self._rows[place][key] = rows
            if due == NEVER:
                self._dues[place].pop(key, None)
            else:
                self._dues[place][key] = due
        self._versions.update(versions)

    def due(self, table: str, groups: Groups, upto: int) -> list[Id]:
        return [
            (group, key) for group in groups for key, due in self._dues[table, group].items() if due <= upto
        ]

    def passed(self, table: str, groups: Groups, closed: int) -> None:
        """`put` has seen to it."""

    def scan(self, table: str, groups: Groups) -> Iterator[bytes]:
        for group in groups:
            yield from self._rows[table, group].values()

    def drop(self, tables: Iterable[str], groups: Groups) -> None:
        for group in groups:
            self._versions.pop(group, None)
            for table in tables:
                self._rows.pop((table, group), None)
                self._dues.pop((table, group), None)

    def close(self) -> None:
        self._versions.clear()
        self._rows.clear()
        self._dues.clear()
