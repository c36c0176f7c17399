"""What a table of PostgreSQL demands of the rows that are inserted into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import SinkError

if TYPE_CHECKING:
    from tidegate.sinks.postgres_copy import Connection

_COLUMNS = """
    select a.attname, t.typname, a.attnotnull, a.atthasdef or a.attidentity <> '', a.attidentity
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    order by a.attnum"""
# An index on an expression has an attribute number 0, which has no name. Nulls are distinct in an index that
# does not say otherwise; servers before version 15 cannot say it.
_INDEXES = """
    select c.relname,
        array(select a.attname::text from unnest(i.indkey[0:i.indnkeyatts - 1]) k left join pg_attribute a
            on a.attrelid = i.indrelid and a.attnum = k and k > 0),
        i.indpred is null and i.indimmediate and i.indisvalid and not i.indisexclusion,
        coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)
    from pg_index i join pg_class c on c.oid = i.indexrelid
    where i.indrelid = to_regclass(%s) and (i.indisunique or i.indisexclusion)"""
# An index on an expression may fail on a value; one that is no B-tree has limits of its own.
_FURTHER = """
    select relkind <> 'r' or relispartition or relhasrules or relrowsecurity
        or exists (select from pg_constraint where conrelid = c.oid and contype = 'f')
        or exists (select from pg_trigger where tgrelid = c.oid and not tgisinternal)
        or exists (select from pg_index i join pg_class x on x.oid = i.indexrelid
            join pg_am m on m.oid = x.relam where i.indrelid = c.oid
            and (i.indexprs is not null or i.indpred is not null or m.amname <> 'btree')),
        array(select distinct a.attname::text from pg_index i join pg_attribute a
            on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
            where i.indrelid = c.oid and a.attlen < 0)
    from pg_class c where c.oid = to_regclass(%s)"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a table has."""

    name: str
    type: str
    not_null: bool
    filled: bool
    """Whether a row without a value for it gets one."""
    identity: str
    """As in `pg_attribute`: "a" when it is always generated."""

    @property
    def required(self) -> bool:
        return self.not_null and not self.filled


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique index, or an exclusion constraint. A column is None when it is an expression."""

    name: str
    columns: tuple[str | None, ...]
    plain: bool
    """Whether it counts for all rows, at once, so that an upsert can go by it."""
    nulls: bool
    """Whether two nulls are the same."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is now. Without columns: there is none yet."""

    columns: tuple[Column, ...]
    unique: tuple[Unique, ...]
    guarded: bool
    """Whether a row may be refused by what cannot be told from its columns: a foreign key, a trigger, a rule,
    a policy, partitions, an index on an expression, or what a view stands for."""
    unbounded: tuple[str, ...]
    """Indexed columns whose values may be too long for the index."""

    def clashing(self, written: Sequence[str], key: Sequence[str]) -> list[Unique]:
        """What may find a row of these columns to be there already, other than the index of the upsert.

        An index over a column that is not written goes by what the server fills in.
        """
        return [
            index
            for index in self.unique
            if not (key and index.plain and set(index.columns) == set(key))
            and all(column is None or column in written for column in index.columns)
        ]

    def may_refuse(self, written: Sequence[str], key: Sequence[str]) -> bool:
        """Whether a row may be refused that has passed the constraints of its own columns."""
        return self.guarded or bool(self.clashing(written, key))

    def check_key(self, table: str, key: Sequence[str]) -> None:
        """Raise when an upsert cannot go by these columns."""
        names = ", ".join(key)
        nullable = [column.name for column in self.columns if column.name in key and not column.not_null]
        found = [index for index in self.unique if index.plain and set(index.columns) == set(key)]
        if not found:
            raise SinkError(
                f"table {table} has no unique index on ({names}), which an upsert by that key needs; "
                f"add one: alter table {table} add unique ({names})"
            )
        if nullable and not any(index.nulls for index in found):
            raise SinkError(
                f"column {nullable[0]} of the key ({names}) of table {table} may be null, but its unique "
                "index treats two nulls as different keys; make the column not null, or the index nulls not "
                "distinct"
            )

    def check_updates(self, table: str, key: Sequence[str]) -> None:
        """Raise when rows that come again with the same values in these columns are refused."""
        for index in self.unique:
            if index.plain and set(index.columns) <= set(key):
                columns = ", ".join(map(str, index.columns))
                raise SinkError(
                    f"table {table} takes each ({columns}) only once, because of {index.name}, but a key is "
                    f"emitted again each time it changes; drop {index.name}, or set "
                    f'mode="upsert", key={list(index.columns)}'
                )


def described(connection: Connection, table: str) -> Table:
    """The table of this quoted name."""
    columns = connection.execute(_COLUMNS, (table,)).fetchall()
    indexes = connection.execute(_INDEXES, (table,)).fetchall()
    further = connection.execute(_FURTHER, (table,)).fetchone()
    return Table(
        columns=tuple(Column(*column) for column in columns),
        unique=tuple(Unique(name, tuple(names), *rest) for name, names, *rest in indexes),
        guarded=bool(further and further[0]),
        unbounded=tuple(further[1]) if further else (),
    )
