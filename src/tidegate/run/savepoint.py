"""A savepoint: a copy of a checkpoint at its last committed batch that a pipeline can be started from.

The runs are immutable, so where source and copy share a file system they are hard links. Of Spark's own
record the copy gets the last two cuts: from those Spark goes on with the next batch. Where Spark has not
noted yet that the last batch is over, it brings that batch once more, and the ledger has it published only.
A cut that Spark planned beyond the last committed batch is left behind: it is planned anew.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import CheckpointError, StateError
from tidegate.ledger import ledger
from tidegate.ledger.atomic import create
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.run.checkpoint import find, find_log
from tidegate.run.inspection import check_run
from tidegate.sinks import output_copy
from tidegate.sinks.output_folder import OutputFolder
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.state.log.storage import Local, Storage

_TRIES = 10
_PART = 64 << 20


def save(checkpoint: str | Path, dest: str | Path, *, log: str | None = None, settle: float = 5.0) -> int:
    """Copy a checkpoint to `dest`, which must not exist; and return the batch it was taken after.

    The pipeline may be running. `log` is where the runs are when they are not in the checkpoint; in the copy
    they always are. What sinks have written is not copied. Spark gets `settle` seconds to note that the batch
    is over; it takes longer only when the pipeline is not running.
    """
    folder, _ = find(checkpoint)
    target = Path(dest).absolute()
    if os.path.lexists(target):
        raise CheckpointError(f"{target} already exists; a savepoint needs a folder of its own")
    draft = target.parent / f".{target.name}.{uuid4().hex}"
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        draft.mkdir(parents=True)
        entry = _copied(folder, draft, log, settle)
        _sync_below(draft)
        draft.rename(target)
        for made in (target, *missing):
            DISK.sync_folder(made.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write the savepoint {target}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return entry.batch_id


def _copied(folder: Path, draft: Path, log: str | None, settle: float) -> Entry:
    """Fill the draft. When files vanish because the pipeline has gone on, begin again with its last batch;
    runs that are there already stay, for most of them are in the next manifest, too."""
    for tries_left in reversed(range(_TRIES)):
        entry = _last(folder)
        try:
            _bring_runs(folder, draft, entry, log)
            CheckpointFiles(folder / "spark").copy(draft / "spark", entry.batch_id, settle=settle)
            _bring_dead_letters(folder / "dead-letters", draft / "dead-letters", entry.batch_id)
            break
        except (FileNotFoundError, StateError, CheckpointError) as error:
            if _last(folder).batch_id == entry.batch_id:
                raise
            if not tries_left:
                raise CheckpointError(
                    f"the pipeline commits faster than its state can be copied (last: {error}); raise "
                    "state.retention, or stop it for the savepoint"
                ) from error
            shutil.rmtree(draft / "spark", ignore_errors=True)
            shutil.rmtree(draft / "dead-letters", ignore_errors=True)
    create(draft / "pipeline.json", (folder / "pipeline.json").read_bytes())
    ledger.start_with(draft / "ledger", entry)
    return entry


def _last(folder: Path) -> Entry:
    last = Ledger(folder / "ledger").last
    if last is None:
        raise CheckpointError(f"no batch has been committed to {folder}: there is nothing to save yet")
    if not last.durable:
        raise CheckpointError(f"{folder} was written with state.durable off, so it holds no state to save")
    return last


def _bring_runs(folder: Path, draft: Path, entry: Entry, log: str | None) -> None:
    if entry.state is None:
        return
    manifest = entry.state
    target = Local(draft / "state")
    there = set(target.names())
    if manifest.runs:
        storage = find_log(folder, log)
        for ref in manifest.runs:
            if ref.name not in there:
                _bring_run(storage, ref.name, target)
    for name in there - {ref.name for ref in manifest.runs}:
        target.delete(name)
    for ref in manifest.runs:
        check_run(target, ref)


def _bring_run(storage: Storage, name: str, target: Local) -> None:
    size = storage.size(name)
    if isinstance(storage, Local):
        _link(storage.folder / name, target.folder / name)
        return
    spans = ((offset, min(_PART, size - offset)) for offset in range(0, size, _PART))
    target.write(name, (part for span in spans for part in storage.read(name, [span])))


def _bring_dead_letters(source: Path, target: Path, batch_id: int) -> None:
    for folder in sorted(source.glob("*")):
        output_copy.copy(OutputFolder(folder), OutputFolder(target / folder.name), batch_id, _link)


def _link(source: Path, target: Path) -> None:
    """Have a file under a second name; a copy of it on another file system, or one without links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy(source, target)


def _sync_below(folder: Path) -> None:
    """Sync all files and folders, this one last; links too: whoever wrote those files, such as Spark, may not
    have waited for the disk."""
    for below, _, names in os.walk(folder, topdown=False):
        for name in names:
            DISK.sync_file(Path(below, name))
        DISK.sync_folder(Path(below))
