"""A savepoint: a copy of a checkpoint at its last committed batch that a pipeline can be started from.

The runs are immutable, so where source and copy share a file system they are hard links. Of Spark's own
record the copy gets the last two cuts: from those Spark goes on with the next batch. Where Spark has not
noted yet that the last batch is over, it brings that batch once more, and the ledger has it published only.
A cut that Spark planned beyond the last committed batch is left behind: it is planned anew.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import CheckpointError, StateError
from tidegate.ledger import ledger
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.presence import tell, this_driver
from tidegate.ledger.records import Entry
from tidegate.run.checkpoint import Checkpoint, find, find_log, inner_log, spark_record
from tidegate.run.inspection import check_run
from tidegate.sinks import output_copy
from tidegate.sinks.output_folder import OutputFolder
from tidegate.spark.checkpoint_copy import CheckpointCopy
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.storage.place import local_folder
from tidegate.storage.storage import Storage

_TRIES = 10


def save(
    checkpoint: str | Path | Checkpoint, dest: str | Path, *, log: str | None = None, settle: float = 5.0
) -> int:
    """Copy a checkpoint to `dest`, where nothing must be; and return the batch it was taken after.

    Each may be a folder or the URL of a store. The pipeline may be running. `log` is where the runs are when
    they are not in the checkpoint; in the copy they always are. What sinks have written is not copied. Spark
    gets `settle` seconds to note that the batch is over; it takes longer only when the pipeline is not
    running.
    """
    source = checkpoint if isinstance(checkpoint, Checkpoint) else find(checkpoint)[0]
    folder = local_folder(dest)
    if folder is None:
        return _save_in_store(source, Checkpoint.at(dest), log, settle)
    target = folder.absolute()
    if os.path.lexists(target):
        raise CheckpointError(f"{target} already exists; a savepoint needs a folder of its own")
    draft = target.parent / f".{target.name}.{uuid4().hex}"
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        draft.mkdir(parents=True)
        entry = _copied(source, Checkpoint.at(draft), log, settle)
        _sync_below(draft)
        draft.rename(target)
        for made in (target, *missing):
            DISK.sync_folder(made.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write the savepoint {target}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return entry.batch_id


def _save_in_store(source: Checkpoint, target: Checkpoint, log: str | None, settle: float) -> int:
    """Without a rename: what makes it a checkpoint, `pipeline.json`, comes last."""
    try:
        if target.storage.names() or target.storage.places():
            raise CheckpointError(f"{target} already exists; a savepoint needs a place of its own")
        try:
            return _copied(source, target, log, settle).batch_id
        except BaseException:
            target.storage.clear()
            raise
    except OSError as error:
        raise CheckpointError(f"cannot write the savepoint {target}: {error}") from error


def _copied(source: Checkpoint, target: Checkpoint, log: str | None, settle: float) -> Entry:
    """Fill the target. When files vanish because the pipeline has gone on, begin again with its last batch;
    runs that are there already stay, for most of them are in the next manifest, too."""
    for tries_left in reversed(range(_TRIES)):
        entry = _last(source)
        try:
            _bring_runs(source, target, entry, log)
            with spark_record(source, entry, settle=settle) as spark:
                _bring_spark(spark, target, entry, settle if source.is_local else 0)
            letters, copied = (each.storage.within("dead-letters") for each in (source, target))
            _bring_dead_letters(letters, copied, entry.batch_id)
            break
        except (FileNotFoundError, StateError, CheckpointError) as error:
            if _last(source).batch_id == entry.batch_id:
                raise
            if not tries_left:
                raise CheckpointError(
                    f"the pipeline commits faster than its state can be copied (last: {error}); raise "
                    "state.retention, or stop it for the savepoint"
                ) from error
            for part in ("spark", "dead-letters"):
                target.storage.within(part).clear()
    ledger.start_with(target.ledger, entry)
    target.storage.create("pipeline.json", source.storage.open("pipeline.json").to_pybytes())
    return entry


def _last(checkpoint: Checkpoint) -> Entry:
    last = Ledger(checkpoint.ledger).last
    if last is None:
        raise CheckpointError(f"no batch has been committed to {checkpoint}: there is nothing to save yet")
    if not last.durable:
        raise CheckpointError(
            f"{checkpoint} was written with state.durable off, so it holds no state to save"
        )
    return last


def _bring_runs(source: Checkpoint, draft: Checkpoint, entry: Entry, log: str | None) -> None:
    if entry.state is None:
        return
    manifest = entry.state
    target = inner_log(draft)
    there = set(target.names())
    if manifest.runs:
        storage = find_log(source, log)
        for ref in manifest.runs:
            if ref.name not in there:
                storage.copy(ref.name, target, ref.name)
    for name in there - {ref.name for ref in manifest.runs}:
        target.delete(name)
    for ref in manifest.runs:
        check_run(target, ref)


def _bring_spark(spark: CheckpointFiles, target: Checkpoint, entry: Entry, settle: float) -> None:
    if target.is_local:
        spark.copy(target.spark.folder, entry.batch_id, settle=settle)
        return
    is_over = spark.is_over(entry.batch_id, settle=settle)
    starts = [cut.start for cut in entry.cut.values()]
    ends = [cut.end for cut in entry.cut.values()]
    CheckpointCopy(spark, target.storage.within("spark"), entry.generation).sync(entry.batch_id, starts, ends)
    # Whoever starts from it finds here which batch is over.
    finished = entry.batch_id if is_over else entry.batch_id - 1
    tell(target.storage, replace(this_driver(""), generation=entry.generation, finished=finished, ended=True))


def _bring_dead_letters(source: Storage, target: Storage, batch_id: int) -> None:
    for name in source.places():
        letters, copied = (OutputFolder(place.within(name).url) for place in (source, target))
        output_copy.copy(letters, copied, batch_id)


def _sync_below(folder: Path) -> None:
    """Sync all files and folders, this one last; links too: whoever wrote those files, such as Spark, may not
    have waited for the disk."""
    for below, _, names in os.walk(folder, topdown=False):
        for name in names:
            DISK.sync_file(Path(below, name))
        DISK.sync_folder(Path(below))
