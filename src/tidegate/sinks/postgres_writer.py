"""The work of a Postgres sink. Executors import this module by name; it needs psycopg."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import Identifier

from tidegate.errors import SinkError
from tidegate.sinks import postgres_columns
from tidegate.sinks.postgres import Postgres
from tidegate.sinks.postgres_columns import Found
from tidegate.sinks.sink import Attempt, Receipt, SinkWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Connection = psycopg.Connection[Any]

log = logging.getLogger(__name__)

_BATCHES = "tidegate_batches"
_TASK = "_tidegate_task"
_CONNECT_SECONDS = 10
_LOCK_SECONDS = 5
# Even "if not exists" fails when two drivers create a table at the same moment.
_CREATING = "select pg_advisory_xact_lock(hashtext('tidegate'))"
_COLUMNS = """
    select a.attname, t.typname, a.attnotnull and not a.atthasdef and a.attidentity = ''
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    order by a.attnum"""


class PostgresWriter(SinkWriter):
    """One connection of the driver, made anew when it is lost."""

    def __init__(self, sink: Postgres, pipeline: str) -> None:
        """Checks that the server answers, and creates the table of batches."""
        self._sink = sink
        self._pipeline = pipeline
        self._schema, _, table = sink.table.rpartition(".")
        self._table, self._batches = self._quoted(table), self._quoted(_BATCHES)
        digest = hashlib.sha256(f"{pipeline}\n{sink.table}".encode()).hexdigest()[:10]
        self._staging = f"tidegate_staging_{digest}_"
        self._connection: Connection | None = None
        self._checked: object = None
        self._attempts: dict[str, int] = {}
        with self._transaction() as connection:
            connection.execute(_CREATING)
            connection.execute(
                f"create table if not exists {self._batches} (pipeline text, target text, batch_id bigint, "
                "rows bigint not null, published_at timestamptz not null default now(), "
                "primary key (pipeline, target, batch_id))"
            )

    def check(self, rows: DataFrame) -> None:
        self._create_statement(rows)
        postgres_columns.as_text(rows)  # Spark finds at once what it cannot turn into JSON.
        with self._transaction() as connection:
            if found := self._columns(connection):
                postgres_columns.check(rows, self._sink.table, found)

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        staging = f"{self._staging}{attempt.batch_id}_{attempt.generation}_{attempt.number}"
        table, columns = self._quoted(staging), _listed(rows.columns)
        with self._transaction() as connection:
            if self._checked != rows.schema:
                connection.execute(_CREATING)
                connection.execute(self._create_statement(rows))
                postgres_columns.check(rows, self._sink.table, self._columns(connection))
                self._checked = rows.schema
            connection.execute(
                f"create table {table} as select {columns}, 0::bigint as {_TASK} from {self._table} "
                "with no data"
            )
        self._attempts[staging] = attempt.batch_id
        statement = f"copy {table} ({columns}, {_TASK}) from stdin (format csv)"
        text = postgres_columns.as_text(rows)
        done = text.mapInArrow(
            partial(copy_partition, self._sink.dsn, statement), "task bigint, rows bigint"
        ).collect()
        # Of a partition that ran more than once, Spark hands on the answer of one task.
        return {
            "staging": staging,
            "columns": rows.columns,
            "tasks": sorted(task for task, _ in done),
            "rows": sum(count for _, count in done),
        }

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        with self._transaction() as connection:
            entered = connection.execute(
                f"insert into {self._batches} (pipeline, target, batch_id, rows) values (%s, %s, %s, %s) "
                "on conflict do nothing",
                (self._pipeline, self._sink.table, batch_id, receipt["rows"]),
            )
            if entered.rowcount:
                columns, staging = _listed(receipt["columns"]), self._quoted(receipt["staging"])
                moved = connection.execute(
                    f"insert into {self._table} ({columns}) select {columns} from {staging} "
                    f"where {_TASK} = any(%s)",
                    (receipt["tasks"],),
                )
                if moved.rowcount != receipt["rows"]:
                    raise SinkError(
                        f"batch {batch_id} was written with {receipt['rows']} rows, but {receipt['staging']} "
                        f"has {moved.rowcount} of them: the table was changed from outside"
                    )
            # With what earlier tries of this run left of the batch.
            tries = {name for name, batch in self._attempts.items() if batch == batch_id}
            self._drop(connection, sorted(tries | {receipt["staging"]}))
        self._attempts = {name: batch for name, batch in self._attempts.items() if batch > batch_id}

    def recover(self, committed: int, receipt: Receipt | None, *, generation: int) -> None:
        with self._transaction() as connection:
            entered = connection.execute(
                f"select batch_id from {self._batches} where pipeline = %s and target = %s",
                (self._pipeline, self._sink.table),
            )
            published = {batch_id for (batch_id,) in entered}
            latest = max(published, default=-1)
            if latest > committed:
                # Its next batches would be mistaken for repeats of those and lost.
                raise SinkError(
                    f"{self._sink.table} holds batches of {self._pipeline} up to {latest}, but the "
                    f"checkpoint has committed only up to {committed}: use the checkpoint that wrote them, "
                    f"or another table; or remove the rows and their entries in {_BATCHES}"
                )
            tables = connection.execute(
                "select tablename from pg_tables where schemaname = coalesce(%s, current_schema()) "
                "and starts_with(tablename, %s)",
                (self._schema or None, self._staging),
            ).fetchall()
            orphans = []
            for (name,) in tables:
                batch_id, wrote, _ = map(int, name.removeprefix(self._staging).split("_"))
                # Committed but not published: the ledger knows which attempt, and will name it.
                if (batch_id > committed and wrote < generation) or batch_id in published:
                    orphans.append(name)
            self._drop(connection, orphans)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _create_statement(self, rows: DataFrame) -> str:
        if len(set(rows.columns)) < len(rows.columns):
            raise SinkError(f"the rows have columns with the same name: {', '.join(rows.columns)}")
        types = [f"{_listed([name])} {kind}" for name, kind in postgres_columns.create_types(rows)]
        return f"create table if not exists {self._table} ({', '.join(types)})"

    def _columns(self, connection: Connection) -> list[Found]:
        """The columns of the table; none when there is no table yet."""
        return [Found(*column) for column in connection.execute(_COLUMNS, (self._table,)).fetchall()]

    def _drop(self, connection: Connection, names: Sequence[str]) -> None:
        """Drop staging tables at the end of a transaction, except those still in use."""
        # A hung task of a replaced driver may hold its table forever.
        connection.execute(f"set local lock_timeout = '{_LOCK_SECONDS}s'")
        for name in names:
            try:
                with connection.transaction():
                    connection.execute(f"drop table if exists {self._quoted(name)}")
            except psycopg.errors.LockNotAvailable:
                log.warning("staging table %s is still in use; a later start will drop it", name)

    def _quoted(self, table: str) -> str:
        """With the schema of the target, if it has one."""
        return Identifier(*filter(None, (self._schema, table))).as_string(None)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._sink.dsn)
            with self._connection.transaction():
                yield self._connection
        except psycopg.Error as error:
            raise SinkError(f"{self._sink.describe()}: {self._sink.masked(str(error))}") from None


def copy_partition(dsn: str, statement: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: copy a partition in one transaction, then answer with the task's id and its rows."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "copies run in Spark tasks"
    # No two tasks of a Spark application have the same, and the staging table is this attempt's own.
    task = context.taskAttemptId()
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    count = 0
    with (
        connect(dsn) as connection,
        connection.transaction(),
        connection.cursor().copy(statement) as copy,
    ):
        for batch in chain([first], filled):
            copy.write(_csv(batch, task))
            count += batch.num_rows
    yield pa.record_batch({"task": pa.array([task], pa.int64()), "rows": pa.array([count], pa.int64())})


def connect(dsn: str) -> Connection:
    """Connect, with a limit on the wait and without the DSN in what may be raised."""
    try:
        settings = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise SinkError(
            "cannot parse the DSN of a Postgres sink; write it like postgresql://user@host/db"
        ) from None
    settings.setdefault("connect_timeout", _CONNECT_SECONDS)
    settings.setdefault("application_name", "tidegate")
    return psycopg.connect(**settings, autocommit=True)  # type: ignore[arg-type]


def _csv(batch: pa.RecordBatch, task: int) -> memoryview:
    import pyarrow as pa
    from pyarrow import csv

    tagged = batch.append_column(_TASK, pa.repeat(pa.scalar(task, pa.int64()), batch.num_rows))
    buffer = pa.BufferOutputStream()
    # Texts are quoted and nulls are not: that is how COPY tells "" from null.
    csv.write_csv(tagged, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return memoryview(buffer.getvalue())


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(Identifier(name).as_string(None) for name in columns)
