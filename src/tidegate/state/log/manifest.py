"""What the state consists of after a committed batch: runs in the log, and the key groups each counts for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tidegate.state.table.keys import Groups, parse_groups, show_groups
from tidegate.state.table.table import StateTable


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run in the log. What it holds of groups that are not in `groups` no longer counts."""

    name: str
    sequence: int
    """The batch that it was written for; of two runs with a key, the one with the larger number is right."""
    groups: Groups
    rows: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sequence": self.sequence,
            "groups": show_groups(self.groups),
            "rows": self.rows,
            "bytes": self.bytes,
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> RunRef:
        return cls(form["name"], form["sequence"], parse_groups(form["groups"]), form["rows"], form["bytes"])


@dataclass(frozen=True, slots=True)
class StateManifest:
    """The state after one batch. Before the first one, `batch_id` is -1 and there are no runs."""

    batch_id: int
    groups: int
    """Number of key groups, a power of two; it stays for the life of a checkpoint."""
    closed: int | None
    """The watermark of that batch: rows due by then no longer count."""
    tables: tuple[StateTable, ...]
    runs: tuple[RunRef, ...] = ()
    """Oldest first."""

    def restricted(self, groups: Groups) -> StateManifest:
        """What matters to the owner of these groups."""
        kept = (replace(run, groups=run.groups & groups) for run in self.runs)
        return replace(self, runs=tuple(run for run in kept if run.groups))

    def to_json(self) -> dict[str, Any]:
        return {
            "batch_id": self.batch_id,
            "groups": self.groups,
            "closed": self.closed,
            "tables": [table.to_json() for table in self.tables],
            "runs": [run.to_json() for run in self.runs],
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> StateManifest:
        return cls(
            form["batch_id"],
            form["groups"],
            form["closed"],
            tuple(map(StateTable.from_json, form["tables"])),
            tuple(map(RunRef.from_json, form["runs"])),
        )


def together(parts: Iterable[Iterable[RunRef]]) -> tuple[RunRef, ...]:
    """The runs of several owners, each run once with all the groups it counts for; oldest first."""
    found: dict[str, RunRef] = {}
    for runs in parts:
        for run in runs:
            known = found.get(run.name)
            found[run.name] = run if known is None else replace(known, groups=known.groups | run.groups)
    return tuple(sorted(found.values(), key=lambda run: (run.sequence, run.name)))
