"""The folder that a pipeline goes on from.

<checkpoint>/pipeline.json   whose it is
             ledger/         committed batches and generations
             spark/          Spark's own offsets
             state/          runs of the state, unless state.log names another place
             state.json      that place
             nodes/          what state nodes say and need while they run
             dead-letters/   rows that could not be read
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from uuid import uuid4

from tidegate.errors import CheckpointError
from tidegate.ledger.atomic import create
from tidegate.pipeline.plan import Plan
from tidegate.state.log.storage import open_storage
from tidegate.translation.handover import numbered_sources


def open_folder(place: str, plan: Plan) -> Path:
    """The folder, created when missing. Raises CheckpointError when it belongs to other sources."""
    parsed = urlparse(place)
    if parsed.scheme not in ("", "file"):
        raise CheckpointError(f"a checkpoint must be a local folder; {place!r} is not")
    folder = Path(parsed.path if parsed.scheme else place).resolve()
    mine = {
        "pipeline": plan.name,
        # Spark keeps offsets by number, so their order counts.
        "sources": [[s.name, type(s.source).__name__, s.source.location] for s in numbered_sources(plan)],
    }
    label = folder / "pipeline.json"
    try:
        is_new = create(label, json.dumps(mine, indent=2).encode())
        theirs = mine if is_new else json.loads(label.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be used: {error}") from error
    if theirs != mine:
        raise CheckpointError(
            f"the checkpoint {folder} was written by pipeline {theirs['pipeline']!r} with sources "
            f"{_shown(theirs['sources'])}, and this is {plan.name!r} with {_shown(mine['sources'])}; "
            "use another checkpoint folder, or undo the change to go on from this one"
        )
    return folder


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the runs of a checkpoint are, and what it is known by there."""

    place: str
    id: str


def open_log(folder: Path, place: str | None) -> LogPlace:
    """Where the runs of a checkpoint are kept: `place`, or a folder in the checkpoint.

    A place outside belongs to one checkpoint: two would delete each other's runs. Raises CheckpointError
    when it is another's, or when this checkpoint has its runs elsewhere.
    """
    label = folder / "state.json"
    mine: dict[str, Any] = {"log": place, "id": uuid4().hex}
    try:
        if label.exists():
            mine = json.loads(label.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{label} cannot be read: {error}") from error
    if mine["log"] != place:
        raise CheckpointError(
            f"the checkpoint {folder} has its runs in {mine['log'] or folder / 'state'}, and state.log is "
            f"{place or 'none'} now; set it back, or take a savepoint and start from that"
        )
    if place is None:
        if not create(label, json.dumps(mine).encode()):
            mine = json.loads(label.read_bytes())
        return LogPlace(str(folder / "state"), mine["id"])
    storage, owner = open_storage(place), f"{mine['id']}.owner"
    others = [name for name in storage.names() if name.endswith(".owner") and name != owner]
    if others:
        raise CheckpointError(
            f"the log {place} belongs to another checkpoint; give each one a place of its own with state.log"
        )
    # Only a place that can be used goes on record.
    storage.write(owner, [str(folder).encode()])
    create(label, json.dumps(mine).encode())
    return LogPlace(place, mine["id"])


def _shown(sources: object) -> str:
    assert isinstance(sources, list)
    return ", ".join(f"{name} ({place or kind})" for name, kind, place in sources)
