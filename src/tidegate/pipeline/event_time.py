"""Where the rows of a stream carry their event time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, slots=True)
class EventTime:
    """A timestamp column, and what to add to it: a window happened just before its end."""

    column: str
    shift: int = 0
    """Microseconds."""

    def micros(self, prefix: str = "") -> Column:
        """The event time in microseconds since 1970, as bigint. `prefix` is put before the column's name."""
        from pyspark.sql import functions as F

        micros = F.unix_micros(F.col(f"{prefix}`{self.column}`"))
        return micros + self.shift if self.shift else micros
