"""State without some of its tables: the runs that hold rows of them are written anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidegate.state.log.compaction import merged_rows
from tidegate.state.log.log import Log, Snapshot
from tidegate.state.log.manifest import RunRef, StateManifest

_AT_ONCE = 16 << 20
"""Bytes of a run that are in memory together."""


def without(
    log: Log, manifest: StateManifest, gone: frozenset[str], name: Callable[[RunRef], str]
) -> StateManifest:
    """The state of a manifest without the tables `gone`. A run that takes the place of another is called as
    `name` says; those of the manifest stay as they are."""
    kept = replace(manifest, tables=tuple(table for table in manifest.tables if table.name not in gone))
    runs: list[RunRef] = []
    for ref in manifest.runs:
        run = log.run(ref)
        if gone.isdisjoint(run.parts):
            runs.append(ref)
            continue
        snapshot = Snapshot(log, kept, ref.groups, (ref,), ())
        rows = merged_rows(snapshot, [(ref, run)], bottom=False, budget=_AT_ONCE, rest=lambda: None)
        written = log.rewrite(
            name(ref), rows, sequence=ref.sequence, groups=ref.groups, count=manifest.groups
        )
        runs += [written] if written else []
    return replace(kept, runs=tuple(runs))
