"""Setting back a watermark that has run away, so that rows of today are not late for ever.

What the watermark had passed has been emitted, and stays so: the runs of the state are written anew without
it, and then the ledger tells the last committed batch again, with these and the earlier watermark. Before
that record nothing has changed, after it everything has.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from tidegate.batch.time import moment
from tidegate.errors import CheckpointError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.run.checkpoint import Checkpoint, find, find_log, make
from tidegate.run.lock import locked, take_over_stopped
from tidegate.state.fleet.nodes import name_prefix
from tidegate.state.log.compaction import merged_rows
from tidegate.state.log.log import Log, Snapshot
from tidegate.state.log.manifest import StateManifest

_MEMORY = 64 << 20
_AT_ONCE = 16 << 20
"""Bytes of runs that are in memory together."""


def times(checkpoint: str | Path) -> Entry:
    """The last committed batch, which has the event times of a checkpoint; CheckpointError for none."""
    found, _ = find(checkpoint)
    return _last(Ledger(found.ledger), found)


def reset(checkpoint: str | Path, to: datetime, *, log: str | None = None) -> int:
    """Set the watermark of a checkpoint back, and return the batch after which it holds.

    No driver may be running: InUseError. CheckpointError unless the watermark is later than that. `log` is
    where the runs are when they are not in the checkpoint.
    """
    found, _ = find(checkpoint)
    micros = round(to.timestamp() * 1e6)
    with locked(make(found), take_over=False) as lock:
        ledger = Ledger(found.ledger)
        last = _last(ledger, found)
        if last.watermark is None or last.watermark <= micros:
            now = moment(last.watermark) or "not known yet"
            raise CheckpointError(f"the watermark of {found} is {now}; it can only be set back")
        take_over_stopped(ledger, lock)
        state = last.state
        if state is not None:
            storage = Log(find_log(found, log), memory=_MEMORY, durable=True)
            name = f"{last.batch_id:012d}-{name_prefix(ledger.generation)}reset.run"
            state = replace(_without_the_past(storage, state, name), closed=micros)
        ledger.amend(
            replace(
                last,
                generation=ledger.generation,
                watermark=micros,
                event_times={source: min(seen, micros) for source, seen in last.event_times.items()},
                furthest=None,
                silent={},
                state=state,
            )
        )
        return last.batch_id


def _last(ledger: Ledger, checkpoint: Checkpoint) -> Entry:
    if ledger.last is None:
        raise CheckpointError(f"no batch has been committed to {checkpoint}")
    return ledger.last


def _without_the_past(log: Log, manifest: StateManifest, name: str) -> StateManifest:
    """The same state in one run that has nothing of what the watermark has passed."""
    if not manifest.runs:
        return manifest
    groups = frozenset(range(manifest.groups))
    snapshot = Snapshot(log, manifest, groups, manifest.runs, ())
    opened = [(ref, log.run(ref)) for ref in manifest.runs]
    rows = merged_rows(snapshot, opened, bottom=True, budget=_AT_ONCE, rest=lambda: None)
    sequence = max(ref.sequence for ref in manifest.runs)
    written = log.rewrite(name, rows, sequence=sequence, groups=groups, count=manifest.groups)
    return replace(manifest, runs=(written,) if written else ())
