"""What an operator is built from."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import check_key
from tidegate.pipeline.event_time import EventTime


@dataclass(frozen=True, slots=True)
class Input:
    """One stream that enters an operator. Raises a PipelineError for a column that cannot be a key."""

    schema: StructType
    keys: tuple[str, ...]
    """The columns of `key_by`, or of this side in `on=`."""
    event_time: EventTime | None
    groups: int = 256
    """Number of key groups of the state, a power of two."""

    def __post_init__(self) -> None:
        for key in self.keys:
            if key not in self.schema.names:
                raise PipelineError(f"there is no column {key!r} among {self.schema.names}")
            check_key(key, self.schema[key].dataType)
