"""What a pipeline is resumed from: a folder, or a place in an object store.

<checkpoint>/pipeline.json   whose it is
             ledger/         committed batches and generations
             state/          runs of the state, unless state.log names another place
             state.json      that place
             rescales/       how they went
             dead-letters/   rows that could not be read

Beside it a driver needs a folder of its machine, which is the checkpoint itself when that is one:

             spark/          Spark's own offsets
             nodes/          what state nodes say and need while they run
             control.json    where the control API answers
             driver.lock     held by the driver that runs on it

For a store that folder is below the user's cache, and nothing in it is believed when a run starts. What the
ledger does not tell is in the store as well:

<checkpoint>/spark/          what Spark has noted of its sources
             driver.json     who runs on it
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import CheckpointError, MissingFileError, StateError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.presence import finished_within
from tidegate.ledger.records import Entry
from tidegate.ledger.seal import opened, sealed
from tidegate.pipeline.plan import Plan
from tidegate.spark.checkpoint_copy import CheckpointCopy
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.storage.local import Local
from tidegate.storage.place import local_folder, open_storage, working_folder
from tidegate.storage.storage import Storage
from tidegate.translation.handover import numbered_sources

_LABEL, _LOG = "pipeline.json", "state.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a checkpoint is. Nothing has to be there yet."""

    storage: Storage
    """What counts, and outlives this machine."""
    folder: Path
    """Of this machine."""

    @classmethod
    def at(cls, place: str | Path) -> Checkpoint:
        """The checkpoint in a folder or at a URL."""
        parts = urlsplit(str(place))
        if parts.scheme not in ("", "file") and not parts.netloc and parts.path.startswith("/"):
            raise CheckpointError(f"a checkpoint must be a folder or the URL of a store; {place} is neither")
        if (folder := local_folder(place)) is not None:
            folder = folder.resolve()
            return cls(Local(folder, private=False), folder)
        return cls(open_storage(place), working_folder(place))

    @property
    def is_local(self) -> bool:
        return isinstance(self.storage, Local)

    @property
    def ledger(self) -> Storage:
        return self.storage.within("ledger")

    @property
    def rescales(self) -> Storage:
        return self.storage.within("rescales")

    @property
    def spark(self) -> CheckpointFiles:
        return CheckpointFiles(self.folder / "spark")

    def spark_copy(self, generation: int, *, plans: bool = False) -> CheckpointCopy:
        """What a driver keeps of Spark's own record in a store."""
        return CheckpointCopy(self.spark, self.storage.within("spark"), generation, plans)

    def __str__(self) -> str:
        return self.storage.url


def make(place: str | Checkpoint) -> Checkpoint:
    """A checkpoint that can be worked with on this machine. CheckpointError when there can be none."""
    checkpoint = place if isinstance(place, Checkpoint) else Checkpoint.at(place)
    try:
        if not checkpoint.is_local:
            checkpoint.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        DISK.make_folder(checkpoint.folder)
    except OSError as error:
        raise CheckpointError(f"cannot use the checkpoint {checkpoint}: {error}") from error
    return checkpoint


def check_owner(checkpoint: Checkpoint, plan: Plan) -> None:
    """Raise CheckpointError when other sources have been read into it. One into which nothing has been read
    is this plan's from now on: so nobody else must be about to."""
    mine = {
        "pipeline": plan.name,
        # Spark keeps offsets by number, so their order counts.
        "sources": [[s.name, type(s.source).__name__, s.source.location] for s in numbered_sources(plan)],
    }
    text, storage = json.dumps(mine, indent=2).encode(), checkpoint.storage
    try:
        is_new = storage.create(_LABEL, text)
        if not is_new and _is_unused(checkpoint):
            storage.write(_LABEL, [text])
    except MissingFileError:
        raise CheckpointError(f"cannot use the checkpoint {checkpoint}: there is no such bucket") from None
    except OSError as error:
        raise CheckpointError(f"cannot use the checkpoint {checkpoint}: {error}") from error
    theirs = mine if is_new else _read(storage, _LABEL, "pipeline", "sources")
    if theirs != mine:
        raise CheckpointError(
            f"the checkpoint {checkpoint} was written by pipeline {theirs['pipeline']!r} with sources "
            f"{_shown(theirs['sources'])}, and this is {plan.name!r} with {_shown(mine['sources'])}; "
            "use another checkpoint, or undo the change to resume from this one"
        )


def find(place: str | Path) -> tuple[Checkpoint, str]:
    """A checkpoint that is there, and the pipeline that wrote it. CheckpointError for none."""
    checkpoint = Checkpoint.at(place)
    try:
        return checkpoint, str(_read(checkpoint.storage, _LABEL, "pipeline")["pipeline"])
    except MissingFileError:
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint: it has no {_LABEL}. Give the place that "
            "engine.checkpoint named when the pipeline ran, by default .tidegate/<pipeline>"
        ) from None


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the runs of a checkpoint are, and what it is known by there."""

    place: str
    id: str


def open_log(checkpoint: Checkpoint, place: str | None) -> LogPlace:
    """Where the runs of a checkpoint are kept: `place`, or within the checkpoint.

    A place outside belongs to one checkpoint: two would delete each other's runs. Raises CheckpointError
    when it is another's, or when this checkpoint has its runs elsewhere.
    """
    storage, within = checkpoint.storage, checkpoint.storage.within("state").url
    mine = _log_on_record(storage) or {"log": place, "id": uuid4().hex}
    if mine["log"] != place:
        raise CheckpointError(
            f"the checkpoint {checkpoint} has its runs in {mine['log'] or within}, and state.log is "
            f"{place or 'none'} now; set it back, or take a savepoint and start from that"
        )
    if place is None:
        if not storage.create(_LOG, sealed(mine)):
            mine = _read(storage, _LOG, "log", "id")
        return LogPlace(within, mine["id"])
    outside, owner = open_storage(place), f"{mine['id']}.owner"
    others = [name for name in outside.names() if name.endswith(".owner") and name != owner]
    if others:
        raise CheckpointError(
            f"the log {place} belongs to another checkpoint; give each its own place with state.log"
        )
    # Only a place that can be used goes on record.
    outside.write(owner, [str(checkpoint).encode()])
    storage.create(_LOG, sealed(mine))
    return LogPlace(place, mine["id"])


def check_log(checkpoint: Checkpoint, *, used: bool) -> None:
    """Raise CheckpointError when `state.json` is damaged, or missing though a run has kept state here
    (`used`), or the log that it names is not of this checkpoint."""
    found = _log_on_record(checkpoint.storage)
    if found is None:
        if used:
            raise CheckpointError(f"{checkpoint}/{_LOG} is missing")
    elif found["log"] is not None and f"{found['id']}.owner" not in open_storage(found["log"]).names():
        raise CheckpointError(f"the log {found['log']} is not marked as belonging to this checkpoint")


def find_log(checkpoint: Checkpoint, log: str | None) -> Storage:
    """Where a checkpoint has its runs: `log`, or the place on record. StateError when that is missing."""
    found = None if log else _log_on_record(checkpoint.storage)
    place = log or (found["log"] if found else None)
    storage = open_storage(place) if place else inner_log(checkpoint)
    if isinstance(storage, Local) and not storage.folder.is_dir():
        hint = "" if log else "; if the runs were moved, give their place with --log"
        raise StateError(f"there is no folder {storage} with the runs of the state{hint}")
    return storage


@contextmanager
def spark_record(
    checkpoint: Checkpoint, last: Entry | None, *, settle: float = 0.0
) -> Iterator[CheckpointFiles]:
    """What Spark needs to go on after the last committed batch: its own record of the checkpoint, or one made
    of what is in the store. To be read inside the block.

    A driver that runs on the store gets `settle` seconds to say that the batch is over.
    """
    if checkpoint.is_local or last is None:
        yield checkpoint.spark
        return
    with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
        files = CheckpointFiles(Path(scratch, "spark"))
        cuts, finished = last.cut.values(), finished_within(checkpoint.storage, last.batch_id, settle)
        copy = CheckpointCopy(files, checkpoint.storage.within("spark"), last.generation)
        copy.restore(
            last.batch_id,
            [cut.start for cut in cuts],
            [cut.end for cut in cuts],
            finished=finished,
        )
        yield files


def inner_log(checkpoint: Checkpoint) -> Storage:
    """The log within a checkpoint."""
    return open_storage(checkpoint.storage.within("state").url)


def _is_unused(checkpoint: Checkpoint) -> bool:
    """Whether no batch was ever planned there: whoever made it stopped before, maybe for a mistake in it."""
    planned = checkpoint.spark.newest("offsets") if checkpoint.is_local else -1
    return Ledger(checkpoint.ledger).last is None and planned < 0


def _log_on_record(storage: Storage) -> dict[str, Any] | None:
    try:
        return _read(storage, _LOG, "log", "id")
    except MissingFileError:
        return None


def _read(storage: Storage, name: str, *keys: str) -> dict[str, Any]:
    """What a file says. MissingFileError when there is none."""
    try:
        found = opened(storage.open(name).to_pybytes())
    except MissingFileError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{storage}/{name} cannot be read: {error}") from error
    if not found.keys() >= set(keys):
        raise CheckpointError(
            f"{storage}/{name} cannot be read: it must be a JSON object with {', '.join(keys)}"
        )
    return found


def _shown(sources: object) -> str:
    assert isinstance(sources, list)
    return ", ".join(f"{name} ({place or kind})" for name, kind, place in sources)
