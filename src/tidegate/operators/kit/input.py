"""What an operator is built from."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import types as T

from tidegate.errors import PipelineError
from tidegate.pipeline.event_time import EventTime


@dataclass(frozen=True, slots=True)
class Input:
    """One stream that enters an operator. Raises a PipelineError for a column that cannot be a key."""

    schema: T.StructType
    keys: tuple[str, ...]
    """The columns of `key_by`, or of this side in `on=`."""
    event_time: EventTime | None
    groups: int = 256
    """Number of key groups of the state, a power of two."""

    def __post_init__(self) -> None:
        for key in self.keys:
            if key not in self.schema.names:
                raise PipelineError(f"there is no column {key!r} among {self.schema.names}")
            kind = self.schema[key].dataType
            if isinstance(kind, T.StringType) and kind.collation != "UTF8_BINARY":
                raise PipelineError(
                    f"{key!r} has the collation {kind.collation}, by which different texts are equal; "
                    "make the key one form of them, e.g. lower(...), and collate it to UTF8_BINARY"
                )
            if isinstance(kind, T.ArrayType | T.MapType | T.StructType | T.VariantType):
                raise PipelineError(
                    f"{key!r} is a {kind.simpleString()}, which cannot be a key; "
                    "select the parts that make up the key as separate columns"
                )
