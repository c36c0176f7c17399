"""A store in plain dictionaries: the twin that the others are compared with."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tidegate.state.node.backends.store import Change, Id, Store
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import NEVER


class MemoryStore(Store):
    """Everything in this process."""

    def __init__(self) -> None:
        self._versions: dict[int, str] = {}
        self._rows: defaultdict[tuple[str, int], dict[bytes, bytes]] = defaultdict(dict)
        self._dues: defaultdict[tuple[str, int], dict[bytes, int]] = defaultdict(dict)
        self._lock = threading.RLock()

    def versions(self, groups: Groups) -> dict[int, str]:
        with self._lock:
            return {group: self._versions[group] for group in groups if group in self._versions}

    def get(self, table: str, ids: Sequence[Id]) -> tuple[list[bytes | None], dict[int, str]]:
        with self._lock:
            found = [self._rows[table, group].get(key) for group, key in ids]
            return found, self.versions(frozenset(group for group, _ in ids))

    def put(self, changes: Iterable[Change], before: Mapping[int, str], after: Mapping[int, str]) -> Groups:
        with self._lock:
            fit = frozenset(group for group, text in before.items() if self._versions.get(group, "") == text)
            for table, group, key, rows, due in changes:
                if group not in fit:
                    continue
                place = (table, group)
                if rows is None:
                    self._rows[place].pop(key, None)
                else:
                    self._rows[place][key] = rows
                if due == NEVER:
                    self._dues[place].pop(key, None)
                else:
                    self._dues[place][key] = due
            self._versions.update({group: after[group] for group in fit})
            return fit

    def due(self, table: str, groups: Groups, upto: int) -> tuple[list[Id], dict[int, str]]:
        with self._lock:
            found = [
                (group, key)
                for group in groups
                for key, due in self._dues[table, group].items()
                if due <= upto
            ]
            return found, self.versions(groups)

    def scan(self, table: str, group: int) -> list[bytes]:
        with self._lock:
            return list(self._rows[table, group].values())

    def drop(self, tables: Iterable[str], groups: Groups) -> None:
        with self._lock:
            for group in groups:
                self._versions.pop(group, None)
                for table in tables:
                    self._rows.pop((table, group), None)
                    self._dues.pop((table, group), None)
