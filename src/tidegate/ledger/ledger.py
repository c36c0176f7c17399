"""The ledger: the durable, append-only record of committed batches and generations.

It is one sequence of numbered records, each created atomically. A driver that starts takes the next number
for its *generation*; a batch that commits takes the next number, too. So a driver that was replaced,
however long it slept, finds its number taken and commits nothing. A batch has happened when, and only
when, its record is here. Old records are forgotten, in their order; a file `oldest-N` says that record N is
the first that counts. Of several such files the highest counts: a driver that slept may have been about to
write one, too. Such a driver may also find a number free again that has been taken: then the record before
it, which the driver knows, is gone as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tidegate.errors import CheckpointError, FencedError, MissingFileError, StorageError
from tidegate.ledger.records import Entry, Generation, decode, encode, is_entry
from tidegate.storage.local import Local
from tidegate.storage.storage import Storage

T = TypeVar("T")

_OLDEST = re.compile(r"oldest-([0-9]+)")
_NAME = re.compile(r"([0-9]+)\.json")


class Ledger:
    """The ledger in a place. Reading it disturbs nobody; `take_over` shuts older drivers out.

    A batch in the steady state takes one record created and one read; names are listed at the start only.
    """

    def __init__(self, place: Storage | Path) -> None:
        self._storage = _storage(place)
        self._next = 0
        self._numbers: list[int] = []
        """Of the records that are there, as far as this driver has looked or written itself."""
        self._is_entry: dict[int, bool] = {}
        """What they are, as far as that is known."""
        self._previous: bytes | None = None
        """The record before the next one."""
        self._marks: list[int] | None = None
        """The marks of the oldest record; None until they have been looked for."""
        self._in_doubt = False
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
                self._storage.sync()
            if self._create(Generation(self.generation, uuid4().hex)):
                return
            self._read_on()

    def get(self, batch_id: int) -> Entry | None:
        """The entry of a batch, or None when it has not been committed."""
        if self.last is None or batch_id > self.last.batch_id:
            return None
        if batch_id == self.last.batch_id:
            return self.last
        return next((entry for entry in self.entries() if entry.batch_id == batch_id), None)

    def append(self, entry: Entry) -> None:
        """Commit a batch: THE commit point. Raises FencedError when this driver has been replaced.

        After a StorageError it is open whether the batch was committed: only another start can tell.
        """
        self.check_next(entry.batch_id)
        self._append(entry)

    def amend(self, entry: Entry) -> None:
        """Tell the newest committed batch again: what it says of the state counts from now on."""
        assert self.last is not None
        assert entry.batch_id == self.last.batch_id
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        try:
            is_mine = self._create(entry)
        except StorageError as error:
            raise StorageError(
                f"it is not known whether batch {entry.batch_id} was committed: {error}. Start the pipeline "
                "again: it finds out, and goes on from there"
            ) from error
        if not is_mine:
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

    def check_newest(self) -> None:
        """Raise FencedError when another driver has taken over."""
        newest = Ledger(self._storage).generation
        if newest > self.generation:
            raise FencedError(
                f"another driver has taken over this checkpoint (generation {newest}) from this one "
                f"(generation {self.generation}); only one can run at a time"
            )

    def entries(self) -> Iterator[Entry]:
        """The committed batches that are still on record, newest first; each as it was told last."""
        newest: int | None = None
        for number in reversed(_numbers(self._storage)):
            record = self._read(number, decode)
            if isinstance(record, Entry) and record.batch_id != newest:
                newest = record.batch_id
                yield record

    def forget(self, keep: int) -> None:
        """Remove records so that the newest `keep` committed batches stay, and at times a few more."""
        if len(self._numbers) <= 2 * keep:
            return  # Looking into each record is worth it once there is something to gain.
        entries = [number for number in self._numbers[-2 * keep :] if self._holds_entry(number)]
        if len(entries) < keep:
            return  # Generations lie between them: which are the oldest to stay is seen later.
        oldest = entries[-keep]
        if self._marks is None:
            self._marks = _found(_OLDEST, self._storage)
        self._storage.create(_mark(oldest), b"")
        self._marks = sorted({*self._marks, oldest})
        while self._marks[0] < oldest:
            self._storage.delete(_mark(self._marks[0]))
            del self._marks[0]
        while self._numbers[0] < oldest:
            self._storage.delete(_name(self._numbers[0]))
            self._is_entry.pop(self._numbers.pop(0), None)

    def _holds_entry(self, number: int) -> bool:
        if number not in self._is_entry:
            self._is_entry[number] = self._read(number, is_entry)
        return self._is_entry[number]

    def _create(self, record: Entry | Generation) -> bool:
        if self._in_doubt:
            raise StorageError(f"whether record {self._next} is in {self._storage} has to be found out first")
        name, content = _name(self._next), encode(record)
        self._in_doubt = True
        is_mine = self._is_created(name, content)
        # A number may be free because its record was forgotten; then the one before was, too.
        if is_mine and not self._follows():
            self._storage.delete(name)
            is_mine = False
        self._in_doubt = False
        if not is_mine:
            return False
        self._numbers.append(self._next)
        self._is_entry[self._next] = isinstance(record, Entry)
        self._previous = content
        self._next += 1
        return True

    def _is_created(self, name: str, content: bytes) -> bool:
        """Whether this driver made the record. When the storage does not say, the record tells: no other
        driver writes the same one."""
        try:
            return self._storage.create(name, content)
        except StorageError:
            try:
                return self._holds(name, content)
            except MissingFileError:
                # It may still be on its way to the store. What comes second finds it there, or goes first.
                return self._storage.create(name, content) or self._holds(name, content)

    def _holds(self, name: str, content: bytes) -> bool:
        return bool(self._storage.open(name).to_pybytes() == content)

    def _follows(self) -> bool:
        """Whether the record before the next one is still what this driver has seen there."""
        if self._previous is None:
            return not _oldest(self._storage)
        try:
            return self._holds(_name(self._next - 1), self._previous)
        except MissingFileError:
            return False

    def _read_on(self) -> None:
        """Find the end of the sequence and what it says."""
        oldest = _oldest(self._storage)  # Before the others: a driver may be at work.
        self._numbers = _numbers(self._storage)
        end = max(self._numbers, default=-1) + 1
        if 0 < oldest >= end:
            raise CheckpointError(
                f"the ledger {self._storage} has lost its newest records: it begins with record {oldest}, "
                "but that one and all later ones are gone. Restore the checkpoint from a copy, or start "
                "from a savepoint"
            )
        for number in reversed(range(self._next, end)):
            content = self._read(number, bytes)
            record = self._parsed(number, content, decode)
            if number == end - 1:
                self._previous = content
            if isinstance(record, Entry):
                # Whoever wrote it had taken a generation before, so nothing newer lies further down.
                self.generation = max(self.generation, record.generation)
                self.last = record
                break
            self.generation = max(self.generation, record.number)
        self._next = end

    def _read(self, number: int, parse: Callable[[bytes], T]) -> T:
        try:
            content = self._storage.open(_name(number)).to_pybytes()
        except MissingFileError as error:
            raise self._unreadable(number, error) from error
        return self._parsed(number, content, parse)

    def _parsed(self, number: int, content: bytes, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(content)
        except ValueError as error:
            raise self._unreadable(number, error) from error

    def _unreadable(self, number: int, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"cannot read the ledger's record {self._storage}/{_name(number)}: {error}. Restore the "
            "checkpoint from a copy, or start from a savepoint"
        )


def read(storage: Storage) -> tuple[list[Entry], list[tuple[str, str]]]:
    """The committed batches in a ledger, newest first; and the records that cannot be read, and why."""
    found: list[Entry] = []
    damaged: list[tuple[str, str]] = []
    for name in map(_name, reversed(_numbers(storage))):
        try:
            record = decode(storage.open(name).to_pybytes())
        except MissingFileError:
            continue  # The pipeline has forgotten it meanwhile.
        except (StorageError, ValueError) as error:
            damaged.append((f"{storage}/{name}", str(error)))
            continue
        if isinstance(record, Entry) and not (found and found[-1].batch_id == record.batch_id):
            found.append(record)
    return found, damaged


def missing(storage: Storage) -> list[str]:
    """Records that are gone though newer ones are there; the oldest one if none is left.

    A pipeline that runs may forget records meanwhile: what is missing is so at two looks.
    """
    return [f"{storage}/{_name(number)}" for number in sorted(_missing(storage) & _missing(storage))]


def _missing(storage: Storage) -> set[int]:
    oldest = _oldest(storage)
    numbers = set(_numbers(storage))
    first = oldest or min(numbers, default=0)
    wanted = range(first, max((first, *numbers)) + 1) if numbers or oldest else range(0)
    return set(wanted) - numbers


def started_with(storage: Storage) -> int | None:
    """The batch that a ledger was made with, as that of a savepoint is; None for another ledger, or when that
    batch is forgotten. Raises ValueError or StorageError for a record that cannot be read."""
    try:
        record = decode(storage.open(_name(0)).to_pybytes())
    except MissingFileError:
        return None
    return record.batch_id if isinstance(record, Entry) else None


def start_with(storage: Storage, entry: Entry) -> None:
    """Make a ledger that begins with this batch. Its first driver takes the generation after the entry's."""
    Ledger(storage)._create(entry)


def _storage(place: Storage | Path) -> Storage:
    """A folder is readable for whom its owner lets in: records hold no row."""
    return Local(place, private=False) if isinstance(place, Path) else place


def _oldest(storage: Storage) -> int:
    """The first record that counts: those before it are forgotten, or about to be."""
    return max(_found(_OLDEST, storage), default=0)


def _numbers(storage: Storage) -> list[int]:
    """Of the records that are there."""
    return _found(_NAME, storage)


def _found(name: re.Pattern[str], storage: Storage) -> list[int]:
    """The numbers in the names of this form."""
    return sorted(int(match[1]) for match in map(name.fullmatch, storage.names()) if match)


def _mark(number: int) -> str:
    return f"oldest-{number:012d}"


def _name(number: int) -> str:
    return f"{number:012d}.json"
