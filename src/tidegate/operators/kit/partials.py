"""Partial aggregates: what is kept of rows so that their aggregate can be finished later.

    rows --sql--> partials of a partition --merge--> partials of a key --finish--> value

A null in place of a partial means that there were no rows yet: so an aggregate can be added to a step that
has state already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column

from tidegate.operators.kit.spans import Spans
from tidegate.state.table.keys import whole

PART = "_part"
"""Column of arranged rows: the Spark partition that they were aggregated in."""

Columns: TypeAlias = Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class Partial(ABC):
    """One aggregate. Its columns are named `<name>.<part>`, e.g. `total.sum`."""

    name: str
    output: pa.DataType
    parts: ClassVar[Mapping[str, pa.DataType | None]]
    """What is kept: part -> type, None for that of the output."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns that are kept, all nullable."""
        return tuple(self._field(part, kind or self.output) for part, kind in self.parts.items())

    @property
    def arriving(self) -> tuple[pa.Field, ...]:
        """The columns that `sql` makes, where they are not those that are kept."""
        return self.fields

    @abstractmethod
    def sql(self) -> list[Column]:
        """Aggregates in Spark SQL that make the arriving columns, in their order."""

    @abstractmethod
    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        """The kept columns with one row per span, from those that are kept and others that arrive. Merged in
        the order of the rows."""

    def finish(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The value of each row of the kept columns, as `output`; by default the last of them."""
        return columns[-1]

    def _field(self, part: str, kind: pa.DataType) -> pa.Field:
        return pa.field(f"{self.name}.{part}", kind)


@dataclass(frozen=True, slots=True)
class Partials:
    """All aggregates of a step."""

    each: tuple[Partial, ...]

    @property
    def kept(self) -> pa.Schema:
        """The columns of the state."""
        return pa.schema([field for partial in self.each for field in partial.fields])

    @property
    def arriving(self) -> pa.Schema:
        """The columns of arranged rows."""
        return pa.schema([field for partial in self.each for field in partial.arriving])

    @property
    def output(self) -> list[pa.Field]:
        return [pa.field(partial.name, partial.output) for partial in self.each]

    def sql(self) -> list[Column]:
        return [
            column.alias(field.name)
            for partial in self.each
            for column, field in zip(partial.sql(), partial.arriving, strict=True)
        ]

    def merge(self, kept: pa.Table, fresh: pa.Table, order: NDArray[np.int64], spans: Spans) -> Columns:
        """State and new rows, stacked in this order and then sorted by `order`, merged per span."""
        indices = pa.array(order)
        merged: dict[str, pa.Array] = {}
        for partial in self.each:
            read = dict.fromkeys((*partial.fields, *partial.arriving))
            columns = [stacked(kept, fresh, field).take(indices) for field in read]
            merged |= zip(
                (field.name for field in partial.fields), partial.merge(columns, spans), strict=True
            )
        return merged

    def finish(self, columns: Columns) -> list[pa.Array]:
        return [partial.finish([columns[field.name] for field in partial.fields]) for partial in self.each]


def stacked(kept: pa.Table, fresh: pa.Table, field: pa.Field) -> pa.Array:
    """One column of two tables, null in the table that has none."""
    pieces = [
        whole(table[field.name]).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for table in (kept, fresh)
        if table.num_rows
    ]
    return pa.concat_arrays(pieces) if pieces else pa.array([], field.type)


def rank(kept: int, fresh: pa.Table, name: str) -> NDArray[np.int64]:
    """A column of new rows, below `kept` rows of state that come before all of them.

    State first, then by partition: that is the one order to merge in, however the rows came, because a sum of
    doubles depends on it.
    """
    values = whole(fresh[name]).to_numpy(zero_copy_only=False).astype(np.int64)
    least = int(values.min()) - 1 if len(values) else 0
    return np.concatenate([np.full(kept, least), values])
