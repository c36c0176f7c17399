"""The ledger: the durable, append-only record of committed batches and generations.

It is one sequence of numbered records, each created atomically. A driver that starts takes the next number
for its *generation*; a batch that commits takes the next number, too. So a driver that was replaced,
however long it slept, finds its number taken and commits nothing. A batch has happened when, and only
when, its record is here. Old records are forgotten; a file `oldest-N` says that record N is the first that
counts, so that a driver that slept meanwhile cannot take a number that is free again. Of several such files
the highest counts: that driver may have been about to write one, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tidegate.disk import DISK, Disk
from tidegate.errors import CheckpointError, FencedError
from tidegate.ledger.atomic import create
from tidegate.ledger.records import Entry, Generation, decode, encode, is_entry

T = TypeVar("T")

_OLDEST = re.compile(r"oldest-([0-9]+)")
_NAME = re.compile(r"([0-9]+)\.json")


class Ledger:
    """The ledger in a folder. Reading it disturbs nobody; `take_over` shuts older drivers out."""

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self._folder = folder
        self._disk = disk
        self._next = 0
        self.generation = 0
        self.last: Entry | None = None
        """The newest committed batch."""
        self._read_on()

    def take_over(self) -> None:
        """Become the one driver that may append. Afterwards `last` holds whatever was committed until now."""
        while True:
            self.generation += 1
            if self._next:
                # Whoever wrote the last record may have died before its name was durable. A power cut could
                # take it and leave the one after it: nothing follows before the name is sure to stay.
                self._disk.sync_folder(self._folder)
            if self._create(Generation(self.generation)):
                return
            self._read_on()

    def get(self, batch_id: int) -> Entry | None:
        """The entry of a batch, or None when it has not been committed."""
        if self.last is None or batch_id > self.last.batch_id:
            return None
        return next((entry for entry in self.entries() if entry.batch_id == batch_id), None)

    def append(self, entry: Entry) -> None:
        """Commit a batch: THE commit point. Raises FencedError when this driver has been replaced."""
        self.check_next(entry.batch_id)
        self._append(entry)

    def amend(self, entry: Entry) -> None:
        """Tell the newest committed batch again: what it says of the state counts from now on."""
        assert self.last is not None
        assert entry.batch_id == self.last.batch_id
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        if not self._create(entry):
            raise FencedError(
                f"batch {entry.batch_id} was not committed: another driver has taken over this checkpoint "
                f"from this one (generation {self.generation}); only one can run at a time"
            )
        self.last = entry

    def check_next(self, batch_id: int) -> None:
        """Raise CheckpointError unless this is the batch after the last one."""
        expected = 0 if self.last is None else self.last.batch_id + 1
        if batch_id != expected:
            raise CheckpointError(
                f"Spark started batch {batch_id}, but the ledger expects batch {expected}: the ledger and "
                "Spark's own checkpoint do not match; restore both from one copy, or use a new checkpoint"
            )

    def entries(self) -> Iterator[Entry]:
        """The committed batches that are still on record, newest first; each as it was told last."""
        newest: int | None = None
        for number in reversed(_numbers(self._folder, self._disk)):
            record = self._read(number, decode)
            if isinstance(record, Entry) and record.batch_id != newest:
                newest = record.batch_id
                yield record

    def forget(self, keep: int) -> None:
        """Remove records so that the newest `keep` committed batches stay, and at times a few more."""
        numbers = _numbers(self._folder, self._disk)
        if len(numbers) <= 2 * keep:
            return  # Looking into each record is worth it once there is something to gain.
        entries = [number for number in numbers[-2 * keep :] if self._read(number, is_entry)]
        if len(entries) < keep:
            return  # Generations lie between them: which are the oldest to stay is seen later.
        create(_mark(self._folder, entries[-keep]), b"", self._disk)
        for number in _found(_OLDEST, self._folder, self._disk):
            if number < entries[-keep]:
                self._disk.remove(_mark(self._folder, number))
        for number in numbers:
            if number < entries[-keep]:
                self._disk.remove(_path(self._folder, number))

    def _create(self, record: Entry | Generation) -> bool:
        if not create(_path(self._folder, self._next), encode(record), self._disk):
            return False
        # A number may be free because its record was forgotten; then that was noted first.
        if self._next < _oldest(self._folder, self._disk):
            self._disk.remove(_path(self._folder, self._next))
            return False
        self._next += 1
        return True

    def _read_on(self) -> None:
        """Find the end of the sequence and what it says."""
        oldest = _oldest(self._folder, self._disk)  # Before the others: a driver may be at work.
        end = max(_numbers(self._folder, self._disk), default=-1) + 1
        if 0 < oldest >= end:
            raise CheckpointError(
                f"the ledger {self._folder} has lost its newest records: it begins with record {oldest}, but "
                "that one and all later ones are gone. Restore the checkpoint from a copy, or start from a "
                "savepoint"
            )
        for number in reversed(range(self._next, end)):
            record = self._read(number, decode)
            if isinstance(record, Entry):
                # Whoever wrote it had taken a generation before, so nothing newer lies further down.
                self.generation = max(self.generation, record.generation)
                self.last = record
                break
            self.generation = max(self.generation, record.number)
        self._next = end

    def _read(self, number: int, parse: Callable[[bytes], T]) -> T:
        path = _path(self._folder, number)
        try:
            return parse(self._disk.read(path))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"cannot read the ledger's record {path}: {error}. Restore the checkpoint from a copy, or "
                "start from a savepoint"
            ) from error


def read(folder: Path) -> tuple[list[Entry], list[tuple[Path, str]]]:
    """The committed batches in a ledger, newest first; and the records that cannot be read, and why."""
    found: list[Entry] = []
    damaged: list[tuple[Path, str]] = []
    for path in (_path(folder, number) for number in reversed(_numbers(folder))):
        try:
            record = decode(path.read_bytes())
        except FileNotFoundError:
            continue  # The pipeline has forgotten it meanwhile.
        except (OSError, ValueError) as error:
            damaged.append((path, str(error)))
            continue
        if isinstance(record, Entry) and not (found and found[-1].batch_id == record.batch_id):
            found.append(record)
    return found, damaged


def missing(folder: Path) -> list[Path]:
    """Records that are gone though newer ones are there; the oldest one if none is left.

    A pipeline that runs may forget records meanwhile: what is missing is so at two looks.
    """
    return sorted(_missing(folder) & _missing(folder))


def _missing(folder: Path) -> set[Path]:
    oldest = _oldest(folder)
    numbers = set(_numbers(folder))
    first = oldest or min(numbers, default=0)
    wanted = range(first, max((first, *numbers)) + 1) if numbers or oldest else range(0)
    return {_path(folder, number) for number in wanted if number not in numbers}


def started_with(folder: Path) -> int | None:
    """The batch that a ledger was made with, as that of a savepoint is; None for another ledger, or when that
    batch is forgotten. Raises ValueError or OSError for a record that cannot be read."""
    try:
        record = decode(_path(folder, 0).read_bytes())
    except FileNotFoundError:
        return None
    return record.batch_id if isinstance(record, Entry) else None


def start_with(folder: Path, entry: Entry) -> None:
    """Make a ledger that begins with this batch. Its first driver takes the generation after the entry's."""
    Ledger(folder)._create(entry)


def _oldest(folder: Path, disk: Disk = DISK) -> int:
    """The first record that counts: those before it are forgotten, or about to be."""
    return max(_found(_OLDEST, folder, disk), default=0)


def _numbers(folder: Path, disk: Disk = DISK) -> list[int]:
    """Of the records that are there."""
    return _found(_NAME, folder, disk)


def _found(name: re.Pattern[str], folder: Path, disk: Disk) -> list[int]:
    """The numbers in the names of this form."""
    return sorted(int(match[1]) for match in map(name.fullmatch, disk.names(folder)) if match)


def _mark(folder: Path, number: int) -> Path:
    return folder / f"oldest-{number:012d}"


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}.json"
