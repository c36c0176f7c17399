"""The driver's part of a Postgres sink; it needs psycopg."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg.sql import Identifier

from tidegate.errors import SinkError
from tidegate.sinks import postgres_columns, postgres_table
from tidegate.sinks.postgres import Postgres
from tidegate.sinks.postgres_copy import ROW, TASK, Connection, connect, copy_partition
from tidegate.sinks.postgres_table import Table
from tidegate.sinks.sink import Attempt, Receipt, SinkWriter, ahead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_BATCHES = "tidegate_batches"
_LOCK_SECONDS = 5
_STAGED_BYTES = 8 * 2**20
"""A staging table is emptied when it is larger: after each batch, that would churn the catalogue."""
_INDEXED_BYTES = 2000
"""What an index surely takes; the limit is about 2700 bytes, after compression."""
# Even "if not exists" fails when two drivers create a table at the same moment.
_CREATING = "select pg_advisory_xact_lock(hashtext('tidegate'))"
_NULLS_NOT_DISTINCT = 150000
"""The version of the server from which a unique constraint can hold a null key once."""


class PostgresWriter(SinkWriter):
    """One connection of the driver, made anew when it is lost."""

    def __init__(self, sink: Postgres, pipeline: str) -> None:
        """Checks that the server answers, and creates the table of batches."""
        self._sink = sink
        self._pipeline = pipeline
        self._schema, _, table = sink.table.rpartition(".")
        self._table, self._batches = self._quoted(table), self._quoted(_BATCHES)
        digest = hashlib.sha256(f"{pipeline}\n{sink.table}".encode()).hexdigest()[:10]
        self._prefix = f"tidegate_staging_{digest}_"
        self._connection: Connection | None = None
        self._staged: object = None
        """What the staging table was made for: schema and generation."""
        self._staging = ""
        self._target: Table | None = None
        """The table as it was then."""
        with self._transaction() as connection:
            connection.execute(_CREATING)
            connection.execute(
                f"create table if not exists {self._batches} (pipeline text, target text, batch_id bigint, "
                "rows bigint not null, published_at timestamptz not null default now(), "
                "primary key (pipeline, target, batch_id))"
            )

    def check(self, rows: DataFrame) -> None:
        postgres_columns.as_text(rows)  # Spark finds at once what it cannot turn into JSON.
        with self._transaction(rollback=True) as connection:
            staging = f"{self._prefix}check"
            self._create(connection, rows, staging)
            # The server says what else is wrong with such rows, such as a privilege that is missing.
            connection.execute(self._move(self._receipt(staging, rows, [])))

    def check_updates(self, key: Sequence[str]) -> None:
        if self._sink.mode == "append":
            with self._transaction() as connection:
                postgres_table.described(connection, self._table).check_updates(self._sink.table, key)

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        if self._staged != (rows.schema, attempt.generation):
            self._staging = f"{self._prefix}{attempt.batch_id}_{attempt.generation}_{attempt.number}"
            with self._transaction() as connection:
                connection.execute(_CREATING)
                self._target = self._create(connection, rows, self._staging)
            self._staged = (rows.schema, attempt.generation)
        columns = _listed([*rows.columns, TASK, ROW])
        statement = f"copy {self._quoted(self._staging)} ({columns}) from stdin (format csv)"
        text = postgres_columns.as_text(rows)
        done = text.mapInArrow(
            partial(copy_partition, self._sink.dsn, statement), "partition bigint, task bigint, rows bigint"
        ).collect()
        # Of a partition that ran more than once, Spark hands on the answer of one task.
        receipt = self._receipt(self._staging, rows, [task for _, task, _ in sorted(done)])
        receipt["rows"] = sum(count for *_, count in done)
        if self._may_be_refused(receipt):
            with self._transaction(rollback=True) as connection:
                connection.execute(self._move(receipt))
                connection.execute("set constraints all immediate")
        return receipt

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        place = (self._pipeline, self._sink.table)
        with self._transaction() as connection:
            entered = connection.execute(
                f"update {_escaped(self._batches)} set batch_id = %s, rows = %s, published_at = now() "
                "where pipeline = %s and target = %s and batch_id < %s",
                (batch_id, receipt["rows"], *place, batch_id),
            )
            if not entered.rowcount:
                if self._published(connection) < batch_id:
                    raise SinkError(
                        f"{_BATCHES} no longer has an entry of {self._pipeline} for {self._sink.table}: "
                        "something else has changed it; start the pipeline again"
                    )
                return
            staging = self._quoted(receipt["staging"])
            count = f"select count(*) from {staging} where {_of(receipt)}"
            found = connection.execute(count).fetchall()[0][0]
            if found != receipt["rows"]:
                raise SinkError(
                    f"batch {batch_id} was written with {receipt['rows']} rows, but {receipt['staging']} "
                    f"has {found} of them: something else has changed the table"
                )
            connection.execute(self._move(receipt))
            # Nobody else can have staged anything that counts: the next batch begins after this one.
            if receipt["staging"] != self._staging:
                self._drop(connection, [receipt["staging"]])
            else:
                self._empty(connection, staging)

    def recover(self, committed: int, receipt: Receipt | None, *, generation: int) -> None:
        with self._transaction() as connection:
            connection.execute(_CREATING)
            latest = self._published(connection)
            if latest > committed:
                # Its next batches would be mistaken for repeats of those and lost.
                anew = f"use another table, or remove the rows and their entry in {_BATCHES}"
                raise ahead(self._sink.table, latest, committed, anew=anew)
            if receipt is not None and 0 <= latest < committed - 1:
                raise SinkError(
                    f"{self._sink.table} holds batches of {self._pipeline} up to {latest} only, but the "
                    f"checkpoint has published {committed - 1}: rows are missing, for example because an old "
                    "backup was restored. Restore a later one; or, to go on without those rows, set the "
                    f"batch_id of the entry in {_BATCHES} to {committed - 1}"
                )
            place = (self._pipeline, self._sink.table)
            batches = _escaped(self._batches)
            connection.execute(
                f"delete from {batches} where pipeline = %s and target = %s and batch_id < %s",
                (*place, latest),
            )
            connection.execute(
                f"insert into {batches} (pipeline, target, batch_id, rows) select %s, %s, -1, 0 where "
                f"not exists (select from {batches} where pipeline = %s and target = %s)",
                (*place, *place),
            )
            tables = connection.execute(
                "select tablename from pg_tables where schemaname = coalesce(%s, current_schema()) "
                "and starts_with(tablename, %s)",
                (self._schema or None, self._prefix),
            ).fetchall()
            # Committed but not published: the ledger knows which attempt, and will name it.
            awaited = receipt["staging"] if receipt is not None and latest < committed else None
            orphans = [
                name
                for (name,) in tables
                if name != awaited and int(name.removeprefix(self._prefix).split("_")[-2]) < generation
            ]
            self._drop(connection, orphans)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _create(self, connection: Connection, rows: DataFrame, staging: str) -> Table:
        """Create the table if it is missing, check it, and create a staging table with its constraints."""
        name, key, written = self._sink.table, self._sink.key, rows.columns
        if len(set(written)) < len(written):
            raise SinkError(f"the rows have columns with the same name: {', '.join(written)}")
        if missing := [column for column in key if column not in written]:
            raise SinkError(f"the rows have no column {missing[0]}, which is in the key of the upsert")
        parts = [f"{_listed([column])} {kind}" for column, kind in postgres_columns.create_types(rows)]
        if key:
            nulls = connection.info.server_version >= _NULLS_NOT_DISTINCT
            parts.append(f"{'unique nulls not distinct' if nulls else 'primary key'} ({_listed(key)})")
        connection.execute(f"create table if not exists {self._table} ({', '.join(parts)})")
        table = postgres_table.described(connection, self._table)
        postgres_columns.check(rows, name, table.columns)
        if key:
            table.check_key(name, key)
        connection.execute(
            f"create table {self._quoted(staging)} (like {self._table} including constraints including "
            f"defaults including generated, {TASK} bigint, {ROW} bigint)"
        )
        for column in table.columns:
            if column.identity and column.name not in written:  # Filled in the table, but not here.
                connection.execute(
                    f"alter table {self._quoted(staging)} alter {_listed([column.name])} drop not null"
                )
        return table

    def _may_be_refused(self, receipt: Receipt) -> bool:
        """Whether the table may refuse rows that the staging table has taken."""
        assert self._target is not None
        if self._target.may_refuse(receipt["columns"], receipt["key"]):
            return True
        indexed = [name for name in receipt["columns"] if name in self._target.unbounded]
        if not indexed:
            return False
        size = " + ".join(f"coalesce(pg_column_size({_listed([name])}), 0)" for name in indexed)
        staged = f"select from {self._quoted(receipt['staging'])} where {_of(receipt)}"
        with self._transaction() as connection:
            found = connection.execute(f"select exists ({staged} and {size} > {_INDEXED_BYTES})")
            return bool(found.fetchall()[0][0])

    def _receipt(self, staging: str, rows: DataFrame, tasks: list[int]) -> Receipt:
        """`tasks` are in the order of their partitions."""
        return {"staging": staging, "columns": rows.columns, "key": list(self._sink.key), "tasks": tasks}

    def _move(self, receipt: Receipt) -> str:
        """The statement that moves what was staged to the table."""
        columns, staging = _listed(receipt["columns"]), self._quoted(receipt["staging"])
        key = receipt.get("key") or []
        if not key:
            return (
                f"insert into {self._table} ({columns}) select {columns} from {staging} where {_of(receipt)}"
            )
        others = [_listed([name]) for name in receipt["columns"] if name not in key]
        update = f"update set {', '.join(f'{name} = excluded.{name}' for name in others)}"
        return (
            f"insert into {self._table} ({columns}) select distinct on ({_listed(key)}) {columns} "
            f"from {staging} where {_of(receipt)} "
            f"order by {_listed(key)}, array_position({_array(receipt)}, {TASK}) desc, {ROW} desc "
            f"on conflict ({_listed(key)}) do {update if others else 'nothing'}"
        )

    def _published(self, connection: Connection) -> int:
        """The latest batch that is in the table; -1 without any."""
        entries = connection.execute(
            f"select coalesce(max(batch_id), -1) from {_escaped(self._batches)} "
            "where pipeline = %s and target = %s",
            (self._pipeline, self._sink.table),
        )
        return int(entries.fetchall()[0][0])

    def _empty(self, connection: Connection, staging: str) -> None:
        """Empty this run's staging table at the end of a transaction, once that is worth it."""
        size = connection.execute("select pg_relation_size(to_regclass(%s))", (staging,)).fetchall()[0][0]
        if size > _STAGED_BYTES and not self._unless_locked(connection, f"truncate {staging}"):
            self._staged = None  # The next batch gets a table of its own.

    def _drop(self, connection: Connection, names: Sequence[str]) -> None:
        """Drop staging tables at the end of a transaction, except those still in use."""
        for name in names:
            if not self._unless_locked(connection, f"drop table if exists {self._quoted(name)}"):
                log.warning("staging table %s is still in use; a later start will drop it", name)

    def _unless_locked(self, connection: Connection, statement: str) -> bool:
        """Execute what needs a table for itself; False when a hung task of a lost attempt holds it."""
        connection.execute(f"set local lock_timeout = '{_LOCK_SECONDS}s'")
        try:
            with connection.transaction():
                connection.execute(statement)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def _quoted(self, table: str) -> str:
        """With the schema of the target, if it has one."""
        return Identifier(*filter(None, (self._schema, table))).as_string(None)

    @contextmanager
    def _transaction(self, *, rollback: bool = False) -> Iterator[Connection]:
        """`rollback`: nothing of it stays."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._sink.dsn)
            with self._connection.transaction(force_rollback=rollback):
                yield self._connection
        except psycopg.Error as error:
            raise SinkError(f"{self._sink.describe()}: {self._sink.masked(str(error))}") from None


def _array(receipt: Receipt) -> str:
    return f"array[{', '.join(str(int(task)) for task in receipt['tasks'])}]::bigint[]"


def _of(receipt: Receipt) -> str:
    """The condition that holds for the rows of the tasks that counted.

    Not by a parameter: a percent sign in a statement without parameters stands for itself, and a column's
    name may have one.
    """
    return f"{TASK} = any({_array(receipt)})"


def _escaped(name: str) -> str:
    """A name for a statement with parameters."""
    return name.replace("%", "%%")


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(Identifier(name).as_string(None) for name in columns)
