"""Whether the parts of a checkpoint are whole and fit together: ledger, `state.json`, Spark's own
record, outputs.

The runs of the state are looked at by `Inspection.verify`, which is what people call. A pipeline that runs
on the checkpoint goes on meanwhile: what does not fit is looked at again if the ledger has grown since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.batch.reconciliation import check_ahead
from tidegate.errors import CheckpointError, SinkError
from tidegate.ledger import ledger
from tidegate.ledger.records import Entry
from tidegate.run.checkpoint import Checkpoint, check_log, spark_record
from tidegate.sinks import committed
from tidegate.sinks.output_folder import OutputFolder
from tidegate.storage.storage import Storage

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file."""

    file: str
    problem: str


def problems(checkpoint: Checkpoint) -> list[Problem]:
    """All that is wrong with a checkpoint but its runs, and the records that cannot be read."""
    found: list[Problem] = []
    for _ in range(_TRIES):
        entries, damaged = ledger.read(checkpoint.ledger)
        mine: list[Entry] = []
        if not damaged:
            # What a savepoint was taken of goes on elsewhere.
            copied = ledger.started_with(checkpoint.ledger)
            mine = [entry for entry in entries if entry.batch_id != copied]
        found = [
            *_of_ledger(checkpoint.ledger),
            *_of_log(checkpoint, used=any(entry.state for entry in mine)),
            *_of_spark(checkpoint, entries, whole=not damaged),
            *_of_outputs(mine),
        ]
        now, _ = ledger.read(checkpoint.ledger)
        if not found or [entry.batch_id for entry in now[:1]] == [entry.batch_id for entry in entries[:1]]:
            break
    return found


def _of_ledger(storage: Storage) -> Iterator[Problem]:
    try:
        for path in ledger.missing(storage):
            yield Problem(path, "this record of the ledger is missing; restore it from a copy")
    except CheckpointError as error:
        yield Problem(str(storage), str(error))


def _of_log(checkpoint: Checkpoint, *, used: bool) -> Iterator[Problem]:
    try:
        check_log(checkpoint, used=used)
    except CheckpointError as error:
        yield Problem(f"{checkpoint}/state.json", str(error))


def _of_spark(checkpoint: Checkpoint, entries: list[Entry], *, whole: bool) -> Iterator[Problem]:
    """Earlier batches than the last two Spark does not read any more."""
    with spark_record(checkpoint, entries[0] if entries else None) as spark:
        try:
            if whole:  # Otherwise what seems to be missing is told already.
                check_ahead(spark.folder, spark.finished(), entries[0].batch_id if entries else -1)
        except CheckpointError as error:
            yield Problem(str(spark.folder), str(error))
        for entry in entries[
            : 2 if checkpoint.is_local else 0
        ]:  # In a store, that is nowhere but in the ledger.
            ends = [cut.end for cut in entry.cut.values()]
            if ends and spark.offsets(entry.batch_id) != ends:
                problem = "it disagrees with the ledger about the batch; the next start rewrites it"
                yield Problem(str(spark.cut_file(entry.batch_id)), problem)
        for entry in entries[:1]:
            for number, cut in enumerate(entry.cut.values()):
                if lost := spark.missing_log(number, cut.end):
                    place = (
                        lost if checkpoint.is_local else f"{checkpoint}/spark/sources-{number}/{lost.name}"
                    )
                    yield Problem(str(place), "this part of the list of files read is missing or damaged")


def _of_outputs(entries: list[Entry]) -> Iterator[Problem]:
    """Those of `Files` sinks and dead letters: others are looked at when the pipeline starts."""
    seen: set[str] = set()
    for entry in entries:
        for receipt in entry.receipts.values():
            place = receipt.get("path")
            if place is None or place in seen:
                continue
            seen.add(place)
            wrong = committed.verify(place) or _at_its_end(place, entry.batch_id, receipt["after"])
            yield from (Problem(place, each) for each in wrong)


def _at_its_end(place: str, batch_id: int, after: list[object] | None) -> list[str]:
    """What is wrong with the end of an output whose last committed batch is this one."""
    try:
        headers = OutputFolder(place).headers()
    except SinkError as error:
        return [str(error)]
    newest = headers[-1] if headers else None
    if newest is not None and newest.last > batch_id:
        return [
            f"it holds batches up to {newest.last}, but the ledger only up to {batch_id}: it has lost records"
        ]
    if (newest is None or newest.last < batch_id) and after != (list(newest.link) if newest else None):
        last = f"ends with batch {newest.last}" if newest else "has no batch"
        return [f"it {last}, but batches up to {batch_id} were committed"]
    return []
