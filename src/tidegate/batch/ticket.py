"""What a request to a state node says of the batch that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

StagedPart: TypeAlias = tuple[str, int]
"""A state table and a Spark partition: what one task stages."""


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """What every request carries."""

    generation: int
    batch_id: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch_id} (generation {self.generation}, attempt {self.attempt})"


NO_TICKET = Ticket(0, -1)
"""Of a node that has not begun a batch."""
