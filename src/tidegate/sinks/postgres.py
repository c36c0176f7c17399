"""A PostgreSQL table."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tidegate.errors import MissingExtraError, SinkError
from tidegate.pipeline.where import refused
from tidegate.sinks import postgres_columns
from tidegate.sinks.postgres_columns import Found
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import Identifier
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_BATCHES = "tidegate_batches"
_TASK = "_tidegate_task"
_CONNECT_SECONDS = 10
_LOCK_SECONDS = 5
_KEYWORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)")
_COLUMNS = """
    select a.attname, t.typname, a.attnotnull and not a.atthasdef and a.attidentity = ''
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    order by a.attnum"""


@dataclass(frozen=True, slots=True)
class Postgres(Sink):
    """Append each batch to `table` ("name" or "schema.name"), in one transaction with its batch id.

    Tasks copy their rows, in parallel, into a staging table of the attempt; a name of its own for each
    attempt means that publishing ends with dropping a table and leaves nothing to vacuum. One
    transaction then enters the batch in `tidegate_batches` and moves the rows of the tasks that counted;
    a batch that is entered already is left alone.

    The table is created if it is missing; arrays, maps and structs become jsonb. An existing one must have
    a fitting column for each of the rows' columns. `dsn` is what libpq takes ("postgresql://user@host/db"
    or "host=... dbname=..."); the driver and all executors connect by it. It is never shown.
    """

    dsn: str = field(repr=False)
    table: str

    def __post_init__(self) -> None:
        if not self.dsn:
            raise refused("give a DSN, like 'postgresql://user@host/database'", step="Postgres")
        parts = self.table.split(".")
        if len(parts) > 2 or not all(parts):
            raise refused(f"table must be 'name' or 'schema.name', not {self.table!r}", step="Postgres")

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise MissingExtraError("postgres", "the Postgres sink") from None
        writer = _Writer(self, pipeline)
        writer.prepare()
        return writer

    def describe(self) -> str:
        return f"Postgres {self.table} on {_server(self.dsn)}"

    @property
    def location(self) -> str:
        return f"postgres:{_server(self.dsn)}/{self.table}"


class _Writer(SinkWriter):
    def __init__(self, sink: Postgres, pipeline: str) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._schema, self._table = ([None, *sink.table.split(".")])[-2:]
        digest = hashlib.sha256(f"{pipeline}\n{sink.table}".encode()).hexdigest()[:10]
        self._staging = f"tidegate_staging_{digest}_"
        self._connection: psycopg.Connection[Any] | None = None
        self._checked: object = None
        self._attempts: dict[str, int] = {}

    def prepare(self) -> None:
        """Check that the server answers, and create the table of batches."""
        with self._transaction() as connection:
            self._lock(connection)
            connection.execute(
                _sql(
                    "create table if not exists {} (pipeline text, target text, batch_id bigint, rows bigint "
                    "not null, published_at timestamptz not null default now(), "
                    "primary key (pipeline, target, batch_id))",
                    self._name(_BATCHES),
                )
            )

    def check(self, rows: DataFrame) -> None:
        self._create_statement(rows)
        postgres_columns.as_text(rows)  # Spark finds at once what it cannot turn into JSON.
        with self._transaction() as connection:
            if found := self._columns(connection):
                postgres_columns.check(rows, self._sink.table, found)

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        staging = f"{self._staging}{attempt.batch_id}_{attempt.generation}_{attempt.number}"
        columns = rows.columns
        with self._transaction() as connection:
            self._create_target(connection, rows)
            connection.execute(
                _sql(
                    "create table {} as select {}, 0::bigint as {} from {} with no data",
                    self._name(staging),
                    _list(columns),
                    _identifier(_TASK),
                    self._name(self._table),
                )
            )
            copy = _sql(
                "copy {} ({}) from stdin (format csv)", self._name(staging), _list([*columns, _TASK])
            ).as_string(connection)
        self._attempts[staging] = attempt.batch_id
        text = postgres_columns.as_text(rows)
        done = text.mapInArrow(
            partial(copy_partition, self._sink.dsn, copy), "task bigint, rows bigint"
        ).collect()
        # Of a partition that ran more than once, Spark hands on the answer of one task.
        return {
            "staging": staging,
            "columns": columns,
            "tasks": sorted(task for task, _ in done),
            "rows": sum(count for _, count in done),
        }

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        staging = self._name(receipt["staging"])
        with self._transaction() as connection:
            entered = connection.execute(
                _sql(
                    "insert into {} (pipeline, target, batch_id, rows) values (%s, %s, %s, %s) "
                    "on conflict do nothing",
                    self._name(_BATCHES),
                ),
                (self._pipeline, self._sink.table, batch_id, receipt["rows"]),
            )
            if entered.rowcount:
                columns = _list(receipt["columns"])
                moved = connection.execute(
                    _sql(
                        "insert into {} ({}) select {} from {} where {} = any(%s)",
                        self._name(self._table),
                        columns,
                        columns,
                        staging,
                        _identifier(_TASK),
                    ),
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

    def recover(
        self, committed: int, receipt: Receipt | None = None, *, generation: int | None = None
    ) -> None:
        with self._transaction() as connection:
            entered = connection.execute(
                _sql(
                    "select batch_id from {} where pipeline = %s and target = %s order by batch_id",
                    self._name(_BATCHES),
                ),
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
                (self._schema, self._staging),
            ).fetchall()
            orphans = []
            for (name,) in tables:
                batch_id, wrote, *_ = map(int, name.removeprefix(self._staging).split("_"))
                replaced = generation is None or wrote < generation
                # Committed but not published: the ledger knows which attempt, and will name it.
                if (batch_id > committed and replaced) or batch_id in published:
                    orphans.append(name)
            self._drop(connection, orphans)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _create_target(self, connection: psycopg.Connection[Any], rows: DataFrame) -> None:
        if self._checked == rows.schema:
            return
        self._lock(connection)
        connection.execute(self._create_statement(rows))
        postgres_columns.check(rows, self._sink.table, self._columns(connection))
        self._checked = rows.schema

    def _create_statement(self, rows: DataFrame) -> Any:
        if len(set(rows.columns)) < len(rows.columns):
            raise SinkError(f"the rows have columns with the same name: {', '.join(rows.columns)}")
        types = [
            _sql("{} {}", _identifier(name), _sql(kind)) for name, kind in postgres_columns.create_types(rows)
        ]
        return _sql("create table if not exists {} ({})", self._name(self._table), _sql(", ").join(types))

    def _columns(self, connection: psycopg.Connection[Any]) -> list[Found]:
        """The columns of the table; none when there is no table yet."""
        target = self._name(self._table).as_string(connection)
        return [Found(*column) for column in connection.execute(_COLUMNS, (target,)).fetchall()]

    def _drop(self, connection: psycopg.Connection[Any], names: Sequence[str]) -> None:
        """Drop staging tables at the end of a transaction, except those still in use."""
        import psycopg

        # A hung task of a replaced driver may hold its table forever.
        connection.execute(_sql("set local lock_timeout = {}", _literal(f"{_LOCK_SECONDS}s")))
        for name in names:
            try:
                with connection.transaction():
                    connection.execute(_sql("drop table if exists {}", self._name(name)))
            except psycopg.errors.LockNotAvailable:
                log.warning("staging table %s is still in use; a later start will drop it", name)

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        # Even "if not exists" fails when two drivers create a table at the same moment.
        connection.execute("select pg_advisory_xact_lock(hashtext('tidegate'))")

    def _name(self, table: str | None) -> Identifier:
        return _identifier(*(part for part in (self._schema, table) if part is not None))

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        import psycopg

        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._sink.dsn)
            with self._connection.transaction():
                yield self._connection
        except psycopg.Error as error:
            raise SinkError(f"{self._sink.describe()}: {masked(str(error), self._sink.dsn)}") from None


def copy_partition(dsn: str, statement: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: copy a partition in one transaction, then answer with the task's id and its rows."""
    import pyarrow as pa
    from psycopg.sql import SQL
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
        connection.cursor().copy(SQL(statement)) as copy,
    ):
        for batch in chain([first], filled):
            copy.write(_csv(batch, task))
            count += batch.num_rows
    yield pa.record_batch({"task": pa.array([task], pa.int64()), "rows": pa.array([count], pa.int64())})


def connect(dsn: str) -> psycopg.Connection[Any]:
    """Connect, with a limit on the wait and without the DSN in what may be raised."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        settings = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise SinkError(
            "cannot parse the DSN of a Postgres sink; write it like postgresql://user@host/db"
        ) from None
    settings.setdefault("connect_timeout", _CONNECT_SECONDS)
    settings.setdefault("application_name", "tidegate")
    return psycopg.connect(**settings, autocommit=True)  # type: ignore[arg-type]


def masked(text: str, dsn: str) -> str:
    """The text without the password of the DSN."""
    secret = _settings(dsn).get("password")
    return text.replace(secret, "***") if secret else text


def _csv(batch: pa.RecordBatch, task: int) -> memoryview:
    import pyarrow as pa
    from pyarrow import csv

    tagged = batch.append_column(_TASK, pa.repeat(pa.scalar(task, pa.int64()), batch.num_rows))
    buffer = pa.BufferOutputStream()
    # Texts are quoted and nulls are not: that is how COPY tells "" from null.
    csv.write_csv(tagged, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return memoryview(buffer.getvalue())


def _server(dsn: str) -> str:
    settings = _settings(dsn)
    host, port = settings.get("host") or "localhost", settings.get("port") or "5432"
    return f"{host}:{port}/{settings.get('dbname', '')}".rstrip("/")


def _settings(dsn: str) -> dict[str, str]:
    """What we may want of a DSN, found without psycopg, which may not be installed yet."""
    if not dsn.startswith(("postgresql://", "postgres://")):
        return {key: value.strip("'") for key, value in _KEYWORD.findall(dsn)}
    address = urlsplit(dsn)
    hosts = address.netloc.rpartition("@")[2]
    host, _, port = hosts.rpartition(":") if re.search(r":\d+$", hosts) else (hosts, "", "")
    settings = {"host": host, "port": port, "dbname": address.path.strip("/")}
    if address.password:
        settings["password"] = unquote(address.password)
    return settings


def _sql(text: str, *parts: Any) -> Any:
    from psycopg.sql import SQL

    return SQL(text).format(*parts) if parts else SQL(text)


def _identifier(*names: str) -> Identifier:
    from psycopg.sql import Identifier

    return Identifier(*names)


def _literal(value: str) -> Any:
    from psycopg.sql import Literal

    return Literal(value)


def _list(columns: Sequence[str]) -> Any:
    return _sql(", ").join(_identifier(name) for name in columns)
