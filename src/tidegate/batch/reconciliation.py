"""Ledger and Spark's own checkpoint, which must agree on where a batch begins and ends.

The ledger is the truth. Spark does not wait for the disk, so a power cut may lose its record of committed
batches, and people delete or restore its folder: it would plan those batches anew, with another end, and the
rows in between would be in no batch or in two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.errors import CheckpointError
from tidegate.ledger.records import Cut, Entry
from tidegate.spark.checkpoint_files import CheckpointFiles

log = logging.getLogger(__name__)

_UNKNOWN = Cut(None, None)


def reconcile(
    spark: CheckpointFiles,
    last: Entry | None,
    sources: Sequence[str],
    *,
    check_newest: Callable[[], object] = lambda: None,
) -> None:
    """Have Spark go on after the last committed batch, before a query starts. `sources` are in the order in
    which Spark numbers them. `check_newest` raises FencedError when another driver has taken over.

    Raises CheckpointError when Spark is ahead of the ledger, or when a source cannot go on without files that
    are gone.
    """
    committed = last.batch_id if last else -1
    check_ahead(spark.folder, spark.finished(), committed)
    starts, ends = ends_of(last, sources)
    for number, name in enumerate(sources):
        if lost := spark.missing_log(number, ends[number]):
            raise CheckpointError(
                f"the checkpoint cannot be resumed: {lost}, a part of the list of files that {name} has "
                f"read, is missing or damaged, and without it they would be read again. Restore "
                f"{spark.folder} as it was after batch {committed}, go back to a savepoint, or start over "
                "with a new checkpoint"
            )
    if last is not None and not _agree(spark, committed, starts, ends):
        log.warning(
            "Spark's checkpoint %s does not end where batch %d does; it is rebuilt from the ledger",
            spark.folder,
            committed,
        )
        spark.rebuild(committed, starts, ends)
    if spark.newest("offsets") > committed and not _is_usable(spark, committed + 1, len(sources)):
        spark.unplan(committed + 1)
    spark.tidy(ends, check_newest)


def ends_of(last: Entry | None, sources: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Where the last committed batch began and ended, for each source; None where that is not known."""
    cuts = [last.cut.get(name, _UNKNOWN) for name in sources] if last else [_UNKNOWN] * len(sources)
    return [cut.start for cut in cuts], [cut.end for cut in cuts]


def check_ahead(spark: Path, finished: int, committed: int) -> None:
    """Raise CheckpointError when Spark has finished a batch that the ledger does not have."""
    if finished > committed:
        has = f"ends with batch {committed}" if committed >= 0 else "has no batch"
        raise CheckpointError(
            f"the newest records of the ledger are missing: it {has}, but according to Spark's own record in "
            f"{spark} batch {finished} was committed. The output of the pipeline is not at fault, so "
            "leave it as it is: restore the whole checkpoint from one copy, or go back to a savepoint"
        )


def check_cut(batch_id: int, cut: Mapping[str, Cut], last: Entry | None, committed: Entry | None) -> None:
    """Raise CheckpointError unless the cut of a batch is the one in the ledger or, for a new batch, begins
    where the last one ended."""
    for name, mine in cut.items():
        if committed is not None:
            agree = committed.cut.get(name, mine) == mine
        else:
            agree = last is None or name not in last.cut or last.cut[name].end == mine.start
        if not agree:
            raise CheckpointError(
                f"Spark planned batch {batch_id} of {name} from {mine.start} to {mine.end}, which disagrees "
                "with the ledger: rows would be lost or repeated. Spark's checkpoint was changed while the "
                "pipeline was running; start the pipeline again, and it is rebuilt from the ledger"
            )


def _agree(spark: CheckpointFiles, batch_id: int, starts: Sequence[object], ends: Sequence[object]) -> bool:
    return spark.offsets(batch_id) == ends and (batch_id == 0 or spark.offsets(batch_id - 1) == starts)


def _is_usable(spark: CheckpointFiles, batch_id: int, sources: int) -> bool:
    """Whether all is there of a batch that was planned only."""
    ends = spark.offsets(batch_id)
    if ends is None or len(ends) != sources:
        return False
    return not any(spark.missing_log(number, end) for number, end in enumerate(ends))
