"""A PostgreSQL table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from tidegate.errors import MissingExtraError, SinkError
from tidegate.pipeline.where import refused
from tidegate.sinks.sink import Sink, SinkWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYWORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)")


@dataclass(frozen=True, slots=True)
class Postgres(Sink):
    """Write each batch to `table` ("name" or "schema.name"), in one transaction with its batch id.

    `mode`: "append" adds the rows. "upsert" keeps one row per `key`, some of the columns: the last one wins,
    in the order of batches and, within a batch, of the rows; made for running aggregates.

    Tasks copy their rows, in parallel, into a staging table of the run. It has the constraints of the table,
    so a row that breaks one fails its batch before it is committed. One transaction then enters the batch in
    `tidegate_batches`, which holds the latest one, and moves the rows of the tasks that counted; a batch
    that is entered already is left alone. If rows may break a unique index, a foreign key or a trigger of
    the table, each batch is inserted once in a transaction that is rolled back, before it is committed.

    The table is created if it is missing; arrays, maps and structs become jsonb. An existing one must have
    a fitting column for each of the rows' columns and, for an upsert, a unique index on the key. `dsn` is
    what libpq takes ("postgresql://user@host/db" or "host=... dbname=..."); the driver and all executors
    connect by it. It is never shown.
    """

    dsn: str = field(repr=False)
    table: str
    mode: Literal["append", "upsert"] = "append"
    key: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.dsn:
            raise refused("give a DSN, like 'postgresql://user@host/database'", step="Postgres")
        parts = self.table.split(".")
        if len(parts) > 2 or not all(parts):
            raise refused(f"table must be 'name' or 'schema.name', not {self.table!r}", step="Postgres")
        if self.mode not in ("append", "upsert"):
            raise refused(f"mode must be append or upsert, not {self.mode!r}", step="Postgres")
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        object.__setattr__(self, "key", key)
        if (self.mode == "upsert") != bool(key):
            raise refused('an upsert, and only that, has a key: mode="upsert", key=["id"]', step="Postgres")

    def check(self) -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingExtraError("postgres", "the Postgres sink") from None
        from tidegate.sinks.postgres_copy import connect

        try:
            connect(self.dsn).close()
        except psycopg.Error as error:
            raise SinkError(f"{self.describe()}: {self.masked(str(error))}") from None

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        self.check()
        from tidegate.sinks.postgres_writer import PostgresWriter

        return PostgresWriter(self, pipeline)

    def describe(self) -> str:
        return f"Postgres {self.table} on {self._server}"

    @property
    def location(self) -> str:
        return f"postgres:{self._server}/{self.table}"

    def masked(self, text: str) -> str:
        """The text without the password of the DSN."""
        secret = _settings(self.dsn).get("password")
        return text.replace(secret, "***") if secret else text

    @property
    def _server(self) -> str:
        settings = _settings(self.dsn)
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
