"""State tables: the columns that an operator keeps per key.

Rows of state are Arrow columns, laid out the same everywhere: in a task, on the wire, in a run, in an export.

    _hash   uint64   of the key; its leading bits are the key group
    _due    int64    event time in microseconds from which the row no longer counts; NEVER if it stays
    _gone   bool     the key has no state any more (value tables only, and only in what is written)
    the key columns, then the value columns
    _probe  int64    in rows that were asked for by key: the place of the key that a row answers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.state.codec import FormError

HASH, DUE, GONE, PROBE = "_hash", "_due", "_gone", "_probe"
NEVER = 2**63 - 1

Kind = Literal["value", "buffer"]
Places = NDArray[np.int64]
"""Of keys, among those that were asked for."""


@dataclass(frozen=True)
class StateTable:
    """What one operator keeps under one name.

    `value`: one row per key; writing a key replaces its row. `buffer`: any number of rows per key; writing
    appends. In both, a row is there until the watermark of a committed batch has reached its `_due`.
    """

    name: str
    """The step's name, with `.part` behind it when a step has several tables: `window_join-1.left`."""
    kind: Kind
    keys: pa.Schema
    values: pa.Schema
    """Names are disjoint from those of `keys`, and none begins with an underscore."""
    labels: tuple[str, ...] = ()
    """What the user calls the key columns, in their order; empty: by their names here."""
    times: tuple[str, ...] = ()
    """The columns, of whole numbers or lists of them, that hold event times in microseconds."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns as read: `_hash`, `_due`, keys, values."""
        fields = [pa.field(HASH, pa.uint64(), False), pa.field(DUE, pa.int64(), False)]
        return pa.schema([*fields, *self.keys, *self.values])

    @cached_property
    def written(self) -> pa.Schema:
        """Columns as written: with `_gone` after `_due` in a value table."""
        if self.kind == "buffer":
            return self.schema
        return self.schema.insert(2, pa.field(GONE, pa.bool_(), False))

    @cached_property
    def answered(self) -> pa.Schema:
        """Columns of an answer to `get`: those read, and `_probe`, the place of the key in the question."""
        return self.schema.append(pa.field(PROBE, pa.int64(), False))

    @cached_property
    def probes(self) -> pa.Schema:
        """Columns by which rows are asked for: `_hash` and the keys."""
        return pa.schema([self.schema.field(HASH), *self.keys])

    @cached_property
    def seen_as(self) -> dict[str, str]:
        """Key and value columns, and what people see each of them as."""
        names = [*self.keys.names, *self.values.names]
        labels = dict(zip(self.keys.names, self.labels, strict=False))
        # A key that is called like another column keeps the name that it has here.
        return {name: name if labels.get(name) in names else labels.get(name, name) for name in names}

    def check(self) -> None:
        """Whether its parts go together; see `codec`."""
        columns = [HASH, DUE, GONE, *self.keys.names, *self.values.names]
        if not len(self.keys) or len(set(columns)) < len(columns):
            raise FormError(f"table {self.name!r} must have a key, and every column once")


def shown(schema: pa.Schema) -> str:
    """Columns as text, for people: `id int64, n double`."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def conformed(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Rows with the columns of a schema, in its order. ValueError for a null where there may be none."""
    required = [field.name for field in wanted if not field.nullable]
    if rows.schema.equals(wanted) and not any(rows[name].null_count for name in required):
        return rows
    return rows.select(wanted.names).cast(wanted)


def empty(schema: pa.Schema) -> pa.Table:
    """No rows, without a thing being built for each column as by `pa.Schema.empty_table`."""
    return pa.Table.from_batches([], schema)


def with_probe(rows: pa.Table, probe: Places) -> pa.Table:
    """Rows with the places of their keys."""
    return rows.append_column(pa.field(PROBE, pa.int64(), False), pa.array(probe, pa.int64()))


def with_probes(rows: pa.Table, places: Places) -> pa.Table:
    """Rows that were asked for by some of the keys, with the places that these have among all."""
    column = pa.array(places[rows[PROBE].to_numpy()], pa.int64())
    index = rows.schema.get_field_index(PROBE)
    return rows.set_column(index, rows.schema.field(index), column)


def by_probe(table: StateTable, found: Sequence[pa.Table]) -> pa.Table:
    """Rows in the order of the keys that were asked for; oldest first within a key."""
    filled = [rows for rows in found if rows.num_rows]
    if not filled:
        return empty(table.answered)
    rows = pa.concat_tables(filled).combine_chunks()
    probe = rows[PROBE].to_numpy()
    if (probe[1:] >= probe[:-1]).all():
        return rows
    order = np.argsort(probe, kind="stable" if table.kind == "buffer" else None)
    return rows.take(pa.array(order))
