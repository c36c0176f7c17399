"""What an operator with state is.

One half runs in Spark SQL: `arrange` brings the rows of a batch into the form that is shuffled, aggregated
as far as it goes before that. The other half, `apply`, runs in each Spark task on whole columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from pyspark.sql import types as T

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.pipeline.window import EventTime
from tidegate.sources.columns import missing
from tidegate.state.table.table import StateTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SIDE, LEFT, RIGHT = "_side", "_left", "_right"

WithinPartitions: TypeAlias = "Callable[[DataFrame], DataFrame]"
"""Lets a `groupBy` on the frame that it returns aggregate within each partition, without a shuffle."""


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
                raise PipelineError(missing(self.schema.names, key))
            kind = self.schema[key].dataType
            if isinstance(kind, T.StringType) and kind.collation != "UTF8_BINARY":
                raise PipelineError(
                    f"{key!r} has the collation {kind.collation}, in which different texts may be equal; "
                    "normalise the key, e.g. with lower(...), and collate it to UTF8_BINARY"
                )
            if isinstance(kind, T.ArrayType | T.MapType | T.StructType | T.VariantType):
                raise PipelineError(
                    f"{key!r} is a {kind.simpleString()}, which cannot be a key; "
                    "select the parts that make up the key as separate columns"
                )


class State(Protocol):
    """The state of this task's key groups, as the batch before left it."""

    def get(self, table: StateTable, keys: pa.Table) -> pa.Table:
        """The rows of these keys: `table.schema` and `_probe`, the row of `keys`; sorted by `_probe`.

        `keys` has the columns of `table.probes`, each key once.
        """

    def due(self, table: StateTable, upto: int) -> pa.Table:
        """The rows with `_due` <= `upto`, as `table.schema`, sorted by `_hash`."""

    def scan(self, table: StateTable) -> pa.Table:
        """All rows, as `table.schema`, sorted by `_hash`."""

    def put(self, table: StateTable, rows: pa.Table) -> None:
        """Write rows with the columns of `table.written`, in any order; in a value table each key once.

        It is seen from the next batch on. At most one call per table and batch.
        """


@dataclass(frozen=True, slots=True)
class Result:
    """What a task hands on."""

    rows: pa.Table
    late: int = 0
    """Rows that came after their window had been closed."""


class Operator(ABC):
    """A keyed step at work. It is pickled to the tasks, so it holds plain values only.

    `apply` must be a pure function of the batch: the same rows in any order, state and time give the same
    result, because a task may run twice.
    """

    tables: tuple[StateTable, ...]
    output: pa.Schema
    aggregates: ClassVar[bool] = False
    """Whether `arrange` aggregates within partitions, and does nothing else that depends on the batch."""

    def narrow(self, rows: DataFrame) -> DataFrame:
        """What of each row is needed, computed row by row: where nothing else reads the rows, this runs in
        the streaming query, and the source need not make the rest."""
        return rows

    @abstractmethod
    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        """The rows of a batch, narrowed, as they are shuffled: with a column `_hash` (bigint) that spreads
        them.

        An operator with two inputs gets them as one frame with the columns SIDE (0 or 1), LEFT and RIGHT
        (structs of all columns of that input, null in the rows of the other one).
        """

    @abstractmethod
    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        """Rows of one task (as arranged, `_hash` as uint64) to output rows in the `output` schema."""

    def output_time(self, declared: EventTime | None) -> EventTime | None:
        """Where its output carries the event time. `declared` is what the step says; it knows no columns."""
        return declared

    def finish(self, rows: DataFrame) -> DataFrame:
        """What is left to do in Spark SQL with the rows that leave the tasks."""
        return rows
