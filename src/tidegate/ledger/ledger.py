"""The ledger: the durable, append-only record of committed batches and generations.

A batch has happened when, and only when, its entry is here.
"""

from __future__ import annotations

import json
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


class Ledger:
    """The ledger in a folder. Opening it takes a new generation, which shuts older drivers out."""

    def __init__(self, folder: Path) -> None:
        self._batches = folder / "batches"
        self._generations = folder / "generations"
        self.generation = self._take_generation()
        self._last = self._find_last()

    @property
    def last(self) -> Entry | None:
        """The newest committed batch."""
        return self._last

    def get(self, batch_id: int) -> Entry | None:
        """The entry of a batch, or None when it has not been committed."""
        path = self._path(batch_id)
        try:
            return Entry(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"the ledger entry {path} cannot be read: {error}") from error

    def append(self, entry: Entry) -> None:
        """Commit a batch: THE commit point. Raises FencedError when this driver has been replaced."""
        newest = self._newest_generation()
        if newest > self.generation:
            raise FencedError(
                f"batch {entry.batch_id} is not committed: a newer driver (generation {newest}) has taken "
                f"over from this one (generation {self.generation})"
            )
        expected = 0 if self._last is None else self._last.batch_id + 1
        if entry.batch_id != expected:
            raise CheckpointError(
                f"batch {entry.batch_id} came where the ledger expects batch {expected}: it and Spark's own "
                "checkpoint do not belong together; restore both from one copy, or use a new checkpoint"
            )
        if not create(self._path(entry.batch_id), json.dumps(asdict(entry)).encode()):
            raise FencedError(f"batch {entry.batch_id} was committed by another driver")
        self._last = entry

    def _take_generation(self) -> int:
        while True:
            generation = self._newest_generation() + 1
            if create(self._generations / f"{generation:012d}", b""):
                return generation

    def _newest_generation(self) -> int:
        if not self._generations.is_dir():
            return 0
        return max((int(path.name) for path in self._generations.iterdir() if path.name.isdigit()), default=0)

    def _find_last(self) -> Entry | None:
        if not self._batches.is_dir():
            return None
        ids = [int(path.stem) for path in self._batches.glob("*.json") if path.stem.isdigit()]
        return self.get(max(ids)) if ids else None

    def _path(self, batch_id: int) -> Path:
        return self._batches / f"{batch_id:012d}.json"
