"""A PostgreSQL table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tidegate.errors import MissingExtraError
from tidegate.pipeline.where import refused
from tidegate.sinks.sink import Sink, SinkWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYWORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)")


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
