"""Whether state of before fits the steps of today."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from tidegate.errors import CheckpointError
from tidegate.state.log.manifest import StateManifest
from tidegate.state.table.table import StateTable, shown

Meaning = Mapping[str, Mapping[str, str]]
"""Step -> part -> what that part of its state stands for."""


def evolved(base: StateManifest, tables: tuple[StateTable, ...], checkpoint: object) -> StateManifest:
    """The state of a checkpoint under the tables of today. Raises CheckpointError when they do not fit.

    Value columns that may be null can be added; so can tables.
    """
    if base.batch_id >= 0:
        check_steps(base.tables, {step_of(table) for table in tables}, checkpoint)
    known = {table.name: table for table in base.tables}
    for table in tables:
        old = known.pop(table.name, None)
        if old is not None:
            _check_table(old, table, checkpoint)
    if known and base.batch_id >= 0:
        step = step_of(next(iter(known.values())))
        raise _changed(step, f"kept {', '.join(sorted(known))}, which it no longer keeps", checkpoint)
    return replace(base, tables=tables)


def check_steps(tables: Iterable[StateTable], steps: Container[str], checkpoint: object) -> None:
    """Raise CheckpointError where there is state of a step that is not among these."""
    for step in sorted({step_of(table) for table in tables}):
        if step not in steps:
            raise CheckpointError(
                f"the checkpoint {checkpoint} holds state of {step}, which this pipeline does not have; "
                "restore the step (under that name, with .named('...') or name=), or discard its state: "
                f"tidegate state drop {checkpoint} {step}"
            )


def check_meaning(before: Meaning, now: Meaning, checkpoint: object) -> None:
    """Raise CheckpointError where the same columns would stand for something else."""
    for step, parts in before.items():
        for part, text in parts.items() if step in now else ():
            found = now[step].get(part, "nothing")
            if found != text:
                raise _changed(step, f"had {text} for {part!r} and now has {found}", checkpoint)


def step_of(table: StateTable) -> str:
    """The step that a table belongs to."""
    return table.name.partition(".")[0]


def _check_table(old: StateTable, new: StateTable, checkpoint: object) -> None:
    step = step_of(new)
    if old.kind != new.kind or not old.keys.equals(new.keys):
        was, now = shown(old.keys), shown(new.keys)
        raise _changed(step, f"had the key ({was}) in {new.name} and now has ({now})", checkpoint)
    for field in old.values:
        place = new.values.get_field_index(field.name)
        if place < 0:
            raise _changed(step, f"kept {field.name!r} in {new.name} and no longer does", checkpoint)
        kind = new.values.field(place).type
        if not kind.equals(field.type):
            raise _changed(step, f"had {field.type} for {field.name!r} and now has {kind}", checkpoint)
    for field in new.values:
        if old.values.get_field_index(field.name) < 0 and not field.nullable:
            why = f"has a new column {field.name!r} that may not be null, but old keys have no value for it"
            raise _changed(step, why, checkpoint)


def _changed(step: str, how: str, checkpoint: object) -> CheckpointError:
    return CheckpointError(
        f"{step} has changed since the checkpoint {checkpoint} was written: it {how}, so its state would be "
        "misinterpreted. Undo the change; or, if another step has taken its number, name both with "
        f".named('...') or name=; or discard its state: tidegate state drop {checkpoint} {step}"
    )
