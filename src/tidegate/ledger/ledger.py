"""The ledger: the durable, append-only record of committed batches and generations.

It is one sequence of numbered records, each created atomically. A driver that starts takes the next number
for its *generation*; a batch that commits takes the next number, too. So a driver that was replaced,
however long it slept, finds its number taken and commits nothing. A batch has happened when, and only
when, its record is here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import CheckpointError, FencedError
from tidegate.ledger.atomic import create


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed batch."""

    batch_id: int
    generation: int
    cut: dict[str, Any]
    """Source -> {"start": offset, "end": offset}."""
    event_times: dict[str, int]
    """Source -> largest event time seen up to and with this batch, in microseconds."""
    receipts: dict[str, dict[str, Any]]
    """Sink -> what it needs to publish the batch."""
    limit: int | None = None
    """Rows that a batch was allowed when this one was committed."""
    watermark: int | None = None
    """The watermark that held in this batch, in microseconds."""
    state: dict[str, Any] | None = None
    """What the state consists of after this batch: a manifest. None for a pipeline without state."""
    route: dict[str, Any] | None = None
    """Who owned and worked on which key groups."""


class Ledger:
    """The ledger in a folder. Reading it disturbs nobody; `take_over` shuts older drivers out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0
        self.generation = 0
        self.last: Entry | None = None
        """The newest committed batch."""
        self._read_on()

    def take_over(self) -> None:
        """Become the one driver that may append. Afterwards `last` holds whatever was committed until now."""
        while True:
            self.generation += 1
            if self._create({"generation": self.generation}):
                return
            self._read_on()

    def get(self, batch_id: int) -> Entry | None:
        """The entry of a batch, or None when it has not been committed."""
        if self.last is None or batch_id > self.last.batch_id:
            return None
        for entry in self.entries():
            if entry.batch_id <= batch_id:
                return entry if entry.batch_id == batch_id else None
        return None

    def append(self, entry: Entry) -> None:
        """Commit a batch: THE commit point. Raises FencedError when this driver has been replaced."""
        self.check_next(entry.batch_id)
        if not self._create(asdict(entry)):
            raise FencedError(
                f"batch {entry.batch_id} is not committed: another driver has taken over this checkpoint "
                f"from this one (generation {self.generation}); only one can run at a time"
            )
        self.last = entry

    def check_next(self, batch_id: int) -> None:
        """Raise CheckpointError unless this is the batch after the last one."""
        expected = 0 if self.last is None else self.last.batch_id + 1
        if batch_id != expected:
            raise CheckpointError(
                f"batch {batch_id} came where the ledger expects batch {expected}: it and Spark's own "
                "checkpoint do not belong together; restore both from one copy, or use a new checkpoint"
            )

    def entries(self) -> Iterator[Entry]:
        """The committed batches that are still on record, newest first."""
        for number in reversed(self._numbers()):
            record = self._read(number)
            if isinstance(record, Entry):
                yield record

    def forget(self, keep: int) -> None:
        """Remove records so that the newest `keep` committed batches stay, and at times a few more."""
        numbers = self._numbers()
        if len(numbers) <= 2 * keep:
            return  # Looking into each record is worth it once there is something to gain.
        entries = [number for number in numbers[-2 * keep :] if isinstance(self._read(number), Entry)]
        if len(entries) < keep:
            return  # Generations lie between them: which are the oldest to stay is seen later.
        for number in numbers:
            if number < entries[-keep]:
                self._path(number).unlink(missing_ok=True)

    def _create(self, record: dict[str, Any]) -> bool:
        if not create(self._path(self._next), json.dumps(record).encode()):
            return False
        # A number may be free because its record was forgotten; then the one before it was forgotten first.
        if self._next and not self._path(self._next - 1).exists():
            self._path(self._next).unlink(missing_ok=True)
            return False
        self._next += 1
        return True

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit())

    def _read_on(self) -> None:
        """Find the end of the sequence and what it says."""
        end = max(self._numbers(), default=-1) + 1
        found_generation = False
        for number in reversed(range(self._next, end)):
            record = self._read(number)
            if isinstance(record, Entry):
                # Whoever wrote it had taken a generation before, so nothing newer lies further down.
                self.generation = max(self.generation, record.generation)
                self.last = record
                break
            if not found_generation:
                self.generation, found_generation = max(self.generation, record), True
        self._next = end

    def _read(self, number: int) -> Entry | int:
        """The record of that number: a committed batch, or a generation."""
        path = self._path(number)
        try:
            record = json.loads(path.read_bytes())
            return Entry(**record) if "batch_id" in record else int(record["generation"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"the ledger's record {path} cannot be read: {error}") from error

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.json"
