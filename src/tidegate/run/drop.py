"""Discarding the state of a step that has changed, or is gone, so that the rest of a checkpoint can be used.

Runs are immutable: those that hold rows of the step are written anew without them, and then the ledger tells
the last committed batch again, with these. Before that record nothing has changed, after it everything has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.errors import CheckpointError, StateError
from tidegate.ledger.ledger import Ledger
from tidegate.run.checkpoint import find, find_log, make
from tidegate.run.lock import locked, take_over_stopped
from tidegate.state.fleet.nodes import name_prefix
from tidegate.state.log.log import Log
from tidegate.state.log.manifest import RunRef
from tidegate.state.log.removal import without
from tidegate.state.table.evolution import step_of

_MEMORY = 64 << 20


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was discarded, of the state after a batch."""

    batch_id: int
    tables: tuple[str, ...]


def drop(checkpoint: str | Path, step: str, *, log: str | None = None) -> Dropped:
    """Discard the state of a step. No driver may be running: InUseError. StateError for a step without any.

    `log` is where the runs are when they are not in the checkpoint.
    """
    found, pipeline = find(checkpoint)
    with locked(make(found), take_over=False) as lock:
        ledger = Ledger(found.ledger)
        last = ledger.last
        if last is None or last.state is None:
            raise CheckpointError(f"no batch with state has been committed to {found}")
        state = last.state
        gone = frozenset(table.name for table in state.tables if step_of(table) == step)
        if not gone:
            known = ", ".join(sorted({step_of(table) for table in state.tables})) or "none"
            raise StateError(
                f"the checkpoint of {pipeline} has no state of {step!r}; it has state of: {known}"
            )
        take_over_stopped(ledger, lock)
        prefix = name_prefix(ledger.generation)

        def name(ref: RunRef) -> str:
            return f"{ref.sequence:012d}-{prefix}drop-{state.runs.index(ref)}.run"

        kept = without(Log(find_log(found, log), memory=_MEMORY, durable=True), state, gone, name)
        meaning = {name: parts for name, parts in last.meaning.items() if name != step}
        ledger.amend(replace(last, generation=ledger.generation, state=kept, meaning=meaning))
        return Dropped(last.batch_id, tuple(sorted(gone)))
