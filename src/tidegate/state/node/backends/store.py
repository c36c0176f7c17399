"""A plain store of bytes: what a backend that keeps rows one by one needs from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tidegate.state.table.keys import Groups

Id: TypeAlias = tuple[int, bytes]
"""A key group, and a key in it."""


class Change(NamedTuple):
    """What a key holds from now on."""

    table: str
    group: int
    key: bytes
    rows: bytes | None
    """None: nothing any more."""
    due: int
    """The earliest time at which one of its rows is due; NEVER if none is."""


class Store(ABC):
    """Keys with their rows, by table and key group, and a version for each key group.

    A group without a version holds nothing that may be read. Several threads may call it at once; each call
    happens whole, before or after any other one, also of other processes where the store is shared.
    """

    shared = False
    """Whether other processes see it too, and it outlives this one."""

    @abstractmethod
    def versions(self, groups: Groups) -> dict[int, str]:
        """The versions of these groups, where they have one."""

    @abstractmethod
    def get(self, table: str, ids: Sequence[Id]) -> tuple[list[bytes | None], dict[int, str]]:
        """The rows of each key, and the versions of their groups."""

    @abstractmethod
    def put(self, changes: Iterable[Change], before: Mapping[int, str], after: Mapping[int, str]) -> Groups:
        """Apply changes to the groups that are at the version `before` (empty: that have none), and take them
        to `after`. Other groups stay as they are. The groups that were changed."""

    @abstractmethod
    def due(self, table: str, groups: Groups, upto: int) -> tuple[list[Id], dict[int, str]]:
        """Keys that may hold a row due by then (none is left out, some may no longer do), and the versions of
        the groups."""

    def passed(self, table: str, groups: Groups, closed: int) -> None:  # noqa: B027 - `put` has seen to it
        """No row due by then is held any more; `due` need not look there again."""

    @abstractmethod
    def scan(self, table: str, group: int) -> list[bytes]:
        """The rows of all keys of a group. Where the store is shared, the group may change meanwhile."""

    @abstractmethod
    def drop(self, tables: Iterable[str], groups: Groups) -> None:
        """Forget groups, with their versions."""

    def close(self) -> None:  # noqa: B027 - a store in memory has none
        """Let go of files and connections."""
