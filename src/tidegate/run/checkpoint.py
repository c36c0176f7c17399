"""The folder that a pipeline is resumed from.

<checkpoint>/pipeline.json   whose it is
             ledger/         committed batches and generations
             spark/          Spark's own offsets
             state/          runs of the state, unless state.log names another place
             state.json      that place
             nodes/          what state nodes say and need while they run
             dead-letters/   rows that could not be read
             driver.lock     held by the driver that runs on it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import CheckpointError, StateError
from tidegate.ledger.atomic import create, replace
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.seal import opened, sealed
from tidegate.pipeline.plan import Plan
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.state.log.storage import Storage, open_storage
from tidegate.translation.handover import numbered_sources


def make_folder(place: str) -> Path:
    """The folder, created when missing. CheckpointError when it cannot be."""
    folder = _local(place)
    try:
        DISK.make_folder(folder)
    except OSError as error:
        raise CheckpointError(f"cannot use the checkpoint {folder}: {error}") from error
    return folder


def check_owner(folder: Path, plan: Plan) -> None:
    """Raise CheckpointError when other sources have been read into it. One into which nothing has been read
    is this plan's from now on: so nobody else must be about to."""
    mine = {
        "pipeline": plan.name,
        # Spark keeps offsets by number, so their order counts.
        "sources": [[s.name, type(s.source).__name__, s.source.location] for s in numbered_sources(plan)],
    }
    label, text = folder / "pipeline.json", json.dumps(mine, indent=2).encode()
    try:
        is_new = create(label, text)
        if not is_new and _is_unused(folder):
            replace(label, text)
    except OSError as error:
        raise CheckpointError(f"cannot use the checkpoint {folder}: {error}") from error
    theirs = mine if is_new else _read(label, "pipeline", "sources")
    if theirs != mine:
        raise CheckpointError(
            f"the checkpoint {folder} was written by pipeline {theirs['pipeline']!r} with sources "
            f"{_shown(theirs['sources'])}, and this is {plan.name!r} with {_shown(mine['sources'])}; "
            "use another checkpoint folder, or undo the change to resume from this one"
        )


def find(place: str | Path) -> tuple[Path, str]:
    """The folder of a checkpoint that is there, and the pipeline that wrote it. CheckpointError for none."""
    folder = _local(place)
    label = folder / "pipeline.json"
    if not label.is_file():
        raise CheckpointError(
            f"{folder} is not a checkpoint: it has no pipeline.json. Give the folder that "
            "engine.checkpoint named when the pipeline ran, by default .tidegate/<pipeline>"
        )
    return folder, str(_read(label, "pipeline")["pipeline"])


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
    mine: dict[str, Any] = _read(label, "log", "id") if label.exists() else {"log": place, "id": uuid4().hex}
    if mine["log"] != place:
        raise CheckpointError(
            f"the checkpoint {folder} has its runs in {mine['log'] or folder / 'state'}, and state.log is "
            f"{place or 'none'} now; set it back, or take a savepoint and start from that"
        )
    if place is None:
        if not create(label, sealed(mine)):
            mine = _read(label, "log", "id")
        return LogPlace(str(folder / "state"), mine["id"])
    storage, owner = open_storage(place), f"{mine['id']}.owner"
    others = [name for name in storage.names() if name.endswith(".owner") and name != owner]
    if others:
        raise CheckpointError(
            f"the log {place} belongs to another checkpoint; give each its own place with state.log"
        )
    # Only a place that can be used goes on record.
    storage.write(owner, [str(folder).encode()])
    create(label, sealed(mine))
    return LogPlace(place, mine["id"])


def check_log(folder: Path, *, used: bool) -> None:
    """Raise CheckpointError when `state.json` is damaged, or missing though a run has kept state here
    (`used`), or the log that it names is not of this checkpoint."""
    label = folder / "state.json"
    if not used and not label.exists():
        return
    found = _read(label, "log", "id")
    if found["log"] is not None and f"{found['id']}.owner" not in open_storage(found["log"]).names():
        raise CheckpointError(f"the log {found['log']} is not marked as belonging to this checkpoint")


def find_log(folder: Path, log: str | None) -> Storage:
    """Where a checkpoint has its runs: `log`, or the place on record. StateError when that is missing."""
    label = folder / "state.json"
    place = log or (_read(label, "log")["log"] if label.exists() else None) or str(folder / "state")
    parts = urlsplit(place)
    if "://" not in place or parts.scheme == "file":
        path = Path(parts.path if parts.scheme == "file" else place)
        if not path.is_dir():
            hint = "" if log else "; if the runs were moved, give their place with --log"
            raise StateError(f"there is no folder {path} with the runs of the state{hint}")
    return open_storage(place)


def _is_unused(folder: Path) -> bool:
    """Whether no batch was ever planned there: whoever made it stopped before, maybe for a mistake in it."""
    planned = CheckpointFiles(folder / "spark").newest("offsets")
    return Ledger(folder / "ledger").last is None and planned < 0


def _local(place: str | Path) -> Path:
    text = str(place)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).resolve()
    if parts.netloc or (parts.scheme and parts.path.startswith("/")):
        raise CheckpointError(f"a checkpoint must be a local folder; {text!r} is not")
    return Path(text).resolve()


def _read(label: Path, *keys: str) -> dict[str, Any]:
    try:
        found = opened(label.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{label} cannot be read: {error}") from error
    if not found.keys() >= set(keys):
        raise CheckpointError(f"{label} cannot be read: it must be a JSON object with {', '.join(keys)}")
    return found


def _shown(sources: object) -> str:
    assert isinstance(sources, list)
    return ", ".join(f"{name} ({place or kind})" for name, kind, place in sources)
