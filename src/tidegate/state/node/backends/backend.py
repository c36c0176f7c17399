"""What serves the state of a shard between two batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import pyarrow as pa

from tidegate.state.log.log import Snapshot
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import StateTable


class Backend(ABC):
    """Reads by key, by time and by key group. The log stays the truth: a backend may forget everything.

    `get`, `due` and `scan` are called from several threads, always with the snapshot of the latest `begin` or
    `commit` (or the one before, by a task that is too late for its answer to matter). Key groups are
    among those of the snapshot.
    """

    def begin(self, snapshot: Snapshot) -> None:  # noqa: B027 - a backend without state of its own has nothing to do
        """Stand at this snapshot: forget the key groups that are held in another state than it describes."""

    def commit(  # noqa: B027
        self, before: Snapshot, after: Snapshot, writes: Mapping[str, pa.Table]
    ) -> None:
        """Go from one snapshot to the next, which differs by these rows (columns as written) and its time."""

    @abstractmethod
    def get(self, snapshot: Snapshot, table: StateTable, keys: pa.Table) -> pa.Table:
        """See `operators.operator.State.get`."""

    @abstractmethod
    def due(self, snapshot: Snapshot, table: StateTable, groups: Groups, upto: int) -> pa.Table:
        """See `operators.operator.State.due`."""

    @abstractmethod
    def scan(self, snapshot: Snapshot, table: StateTable, groups: Groups) -> pa.Table:
        """See `operators.operator.State.scan`."""

    def close(self) -> None:  # noqa: B027
        """Let go of files and connections."""
