"""Files that no committed batch within the retention needs any more."""

from __future__ import annotations

import logging
from collections import deque

from tidegate.errors import CheckpointError
from tidegate.ledger.ledger import Ledger
from tidegate.state.fleet.nodes import generation_of
from tidegate.state.log.manifest import StateManifest
from tidegate.storage.storage import Storage

log = logging.getLogger(__name__)


class Garbage:
    """Deletes runs of the log, and records of the ledger, once they are out of the retention.

    What the newest `retention` committed batches name stays. A run that no batch has named is left over from
    a lost node or from an earlier owner, or is about to be named by the next batch. So after a change of the
    route, runs that no batch has named for a while are deleted; and at the start, those of earlier drivers.
    """

    def __init__(self, ledger: Ledger, storage: Storage | None, retention: int) -> None:
        self._ledger = ledger
        self._storage = storage
        self._retention = retention
        self._named: deque[frozenset[str]] = deque()
        self._route = 0
        self._suspects: frozenset[str] = frozenset()
        """Runs that no batch named when they were last looked for."""
        self._suspected_at = 0

    def recover(self) -> None:
        """At start: take up what the ledger names, and delete what it does not."""
        manifests = [entry.state for entry in self._ledger.entries() if entry.state][: self._retention]
        self._named.extend(frozenset(run.name for run in m.runs) for m in reversed(manifests))
        if self._storage is None:
            return
        needed = frozenset[str]().union(*self._named)
        for name in self._storage.names():
            wrote = generation_of(name)
            if name not in needed and wrote is not None and wrote < self._ledger.generation:
                self._delete(name)

    def collect(self, manifest: StateManifest | None, route: int = 0) -> None:
        """After a batch on this version of the route. A file that cannot be deleted only costs space."""
        try:
            self._ledger.forget(self._retention)
        except (OSError, CheckpointError) as error:
            log.warning("could not delete old records of the ledger: %s", error)
        if manifest is None:
            return
        self._named.append(frozenset(run.name for run in manifest.runs))
        while len(self._named) > self._retention:
            oldest = self._named.popleft()
            for name in sorted(oldest.difference(*self._named)):
                self._delete(name)
        self._sweep(manifest.batch_id, route)

    def _sweep(self, batch_id: int, route: int) -> None:
        if self._storage is None:
            return
        needed = frozenset[str]().union(*self._named)
        if self._suspects and batch_id >= self._suspected_at + self._retention:
            for name in sorted(self._suspects - needed):
                self._delete(name)
            self._suspects = frozenset()
        if route != self._route and not self._suspects:
            names = frozenset(self._storage.names())
            mine = {name for name in names if generation_of(name) == self._ledger.generation}
            self._suspects, self._suspected_at, self._route = frozenset(mine - needed), batch_id, route

    def _delete(self, name: str) -> None:
        if self._storage is None:
            return
        try:
            self._storage.delete(name)
        except Exception as error:
            log.warning("could not delete run %s: %s", name, error)
