"""Key groups that have left a node, as they were then: its new owners get them from here."""

from __future__ import annotations

import threading
from dataclasses import replace

from tidegate.state.log.log import Snapshot
from tidegate.state.log.manifest import together
from tidegate.state.table.keys import Groups


class Departures:
    """Frozen snapshots by batch. They hold on to their runs, and to what has not arrived here itself yet."""

    def __init__(self) -> None:
        self._frozen: dict[int, Snapshot] = {}
        self._lock = threading.Lock()

    def freeze(self, snapshot: Snapshot) -> None:
        """Keep all groups of a snapshot. For groups that were frozen after that batch before, it is the one
        that counts."""
        batch_id = snapshot.manifest.batch_id
        with self._lock:
            known = self._frozen.get(batch_id)
            others = known.restricted(known.groups - snapshot.groups) if known else None
            self._frozen[batch_id] = _joined(others, snapshot) if others else snapshot

    def after(self, batch_id: int) -> Snapshot | None:
        """All that is kept of the state after a batch."""
        return self._frozen.get(batch_id)

    def release(self, groups: Groups, before: int) -> None:
        """Forget these groups as of batches before this one. What left later is not meant: a release may be
        held up on its way."""
        with self._lock:
            left = {
                at: kept.restricted(kept.groups - groups) if at < before else kept
                for at, kept in self._frozen.items()
            }
            self._frozen = {at: kept for at, kept in left.items() if kept.groups}

    def rewind(self, batch_id: int) -> None:
        """What was kept of later batches has not happened."""
        with self._lock:
            self._frozen = {at: kept for at, kept in self._frozen.items() if at <= batch_id}

    def names(self) -> set[str]:
        """The runs that are needed. Those of the manifests too: a change of owners may be taken back."""
        kept = list(self._frozen.values())
        return {ref.name for each in kept for ref in (*each.runs, *each.manifest.runs)}


def _joined(one: Snapshot, other: Snapshot) -> Snapshot:
    """The state after one batch, of the groups of both."""
    runs = together([one.manifest.runs, other.manifest.runs])
    return Snapshot(
        other.log,
        replace(other.manifest, runs=runs),
        one.groups | other.groups,
        together([one.runs, other.runs]),
        (*one.arrivals, *other.arrivals),
    )
