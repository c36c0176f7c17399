"""What an operator is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.operators.kit.event_time import EventTime

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Input:
    """One stream that enters an operator."""

    schema: StructType
    keys: tuple[str, ...]
    """The columns of `key_by`, or of this side in `on=`."""
    event_time: EventTime | None
