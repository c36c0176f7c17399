"""What the state consists of after a committed batch: runs in the log, and the key groups each counts for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from tidegate.state.codec import MAX_GROUPS, BatchId, Between, Count, FormError, Like, decoded, encoded
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import StateTable


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run in the log. What it holds of groups that are not in `groups` no longer counts."""

    name: Annotated[str, Like(re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}"), "000000000007-node-1.run")]
    sequence: Count
    """The batch that it was written for; of two runs with a key, the one with the larger number is right."""
    groups: Groups
    rows: Count
    bytes: Count


@dataclass(frozen=True, slots=True)
class StateManifest:
    """The state after one batch. Before the first one, `batch_id` is -1 and there are no runs."""

    batch_id: BatchId
    groups: Annotated[int, Between(1, MAX_GROUPS)]
    """Number of key groups, a power of two; it stays for the life of a checkpoint."""
    closed: int | None
    """The watermark of that batch: rows due by then no longer count."""
    tables: tuple[StateTable, ...]
    runs: tuple[RunRef, ...] = ()
    """Oldest first."""

    def restricted(self, groups: Groups) -> StateManifest:
        """What matters to the owner of these groups."""
        return replace(self, runs=restricted(self.runs, groups))

    def check(self) -> None:
        """Whether its parts go together; see `codec`."""
        if self.groups & (self.groups - 1):
            raise FormError("StateManifest: 'groups' must be a power of two")
        if len({table.name for table in self.tables}) < len(self.tables):
            raise FormError("StateManifest: a table is named twice")
        every = frozenset(range(self.groups))
        if not all(run.groups <= every for run in self.runs):
            raise FormError(f"StateManifest: a run has key groups beyond {self.groups}")

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for the ledger and the wire."""
        form: dict[str, Any] = encoded(self)
        return form

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> StateManifest:
        """What the ledger has, be it among other things."""
        return decoded(cls, {name: form[name] for name in cls.__dataclass_fields__})


def restricted(runs: Iterable[RunRef], groups: Groups) -> tuple[RunRef, ...]:
    """The runs as far as they count for these groups."""
    return tuple(
        run if run.groups <= groups else replace(run, groups=run.groups & groups)
        for run in runs
        if not run.groups.isdisjoint(groups)
    )


def together(parts: Iterable[Iterable[RunRef]]) -> tuple[RunRef, ...]:
    """The runs of several owners, each run once with all the groups it counts for; oldest first."""
    found: dict[str, RunRef] = {}
    for runs in parts:
        for run in runs:
            known = found.get(run.name)
            found[run.name] = run if known is None else replace(known, groups=known.groups | run.groups)
    return tuple(sorted(found.values(), key=lambda run: (run.sequence, run.name)))
