"""A driver's view of the simulated ledger: the rules of `tidegate.ledger.ledger`, without files."""

from __future__ import annotations

from tidegate.errors import CheckpointError, FencedError
from tidegate.sim.durable import Durable, Entry


class Ledger:
    """What one driver knows of it. Nothing is read again after `take_over` has gone through."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self._next = 0
        self.generation = 0
        self.entries: list[Entry] = []

    @property
    def last(self) -> Entry | None:
        return self.entries[-1] if self.entries else None

    def read_on(self) -> None:
        for record in self._durable.records[self._next :]:
            if isinstance(record, Entry):
                self.entries.append(record)
            else:
                self.generation = max(self.generation, record)
        self._next = len(self._durable.records)

    def take_over(self) -> bool:
        """Try once; when it fails, somebody was quicker: read on and try again."""
        if not self._durable.create(self._next, self.generation + 1):
            return False
        self.generation += 1
        self._next += 1
        return True

    def get(self, batch_id: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.batch_id == batch_id), None)

    def append(self, entry: Entry) -> None:
        expected = self.last.batch_id + 1 if self.last else 0
        if entry.batch_id != expected:
            raise CheckpointError(f"batch {entry.batch_id} came where the ledger expects batch {expected}")
        if not self._durable.create(self._next, entry):
            raise FencedError(f"batch {entry.batch_id} is not committed: another driver has taken over")
        self._next += 1
        self.entries.append(entry)
