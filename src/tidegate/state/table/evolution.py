"""Whether state of before fits the steps of today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidegate.errors import CheckpointError
from tidegate.state.log.manifest import StateManifest
from tidegate.state.table.table import StateTable, shown

Meaning = Mapping[str, Mapping[str, str]]
"""Step -> part -> what that part of its state stands for."""

_WAY_OUT = "undo the change to resume from this checkpoint, or start with a new one"


def evolved(base: StateManifest, tables: tuple[StateTable, ...]) -> StateManifest:
    """The state of a checkpoint under the tables of today. Raises CheckpointError when they do not fit.

    Value columns that may be null can be added; so can tables.
    """
    known = {table.name: table for table in base.tables}
    for table in tables:
        old = known.pop(table.name, None)
        if old is not None:
            _check_table(old, table)
    if known and base.batch_id >= 0:
        raise CheckpointError(
            f"the checkpoint holds state of {', '.join(sorted(known))}, which this pipeline does not have; "
            "restore the step, or start with a new checkpoint"
        )
    return replace(base, tables=tables)


def check_meaning(before: Meaning, now: Meaning) -> None:
    """Raise CheckpointError where the same columns would stand for something else."""
    for step, parts in before.items():
        for part, text in parts.items():
            found = now.get(step, {}).get(part, text)
            if found != text:
                raise CheckpointError(
                    f"{part!r} of {step} was {text} when this checkpoint was written and is now {found}: "
                    f"the existing state would be misinterpreted; {_WAY_OUT}. A step that was "
                    "declared before another of its kind takes over its name: give steps their own names"
                )


def _check_table(old: StateTable, new: StateTable) -> None:
    if old.kind != new.kind or not old.keys.equals(new.keys):
        raise CheckpointError(
            f"the key of {new.name} was ({shown(old.keys)}) when this checkpoint was written and is now "
            f"({shown(new.keys)}); {_WAY_OUT}"
        )
    for field in old.values:
        place = new.values.get_field_index(field.name)
        if place < 0:
            raise CheckpointError(
                f"the checkpoint holds {field.name!r} for {new.name}, and this pipeline does not; {_WAY_OUT}"
            )
        if not new.values.field(place).type.equals(field.type):
            raise CheckpointError(
                f"{field.name!r} of {new.name} was {field.type} when this checkpoint was written and is now "
                f"{new.values.field(place).type}; {_WAY_OUT}"
            )
    for field in new.values:
        if old.values.get_field_index(field.name) < 0 and not field.nullable:
            raise CheckpointError(
                f"{field.name!r} is new in {new.name} and may not be null, so old keys have no value for it; "
                "make it nullable, or start with a new checkpoint"
            )
