"""What is special about the Postgres sink."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tidegate.errors import MissingExtraError, PipelineError, SinkError
from tidegate.sinks import Postgres
from tidegate.sinks.sink import Attempt, SinkWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

Numbers = Callable[[int, int], "DataFrame"]
Batch = Callable[..., Attempt]


class Database:
    """The server of the tests, and a table name that nobody has used."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.table = f"rows_{uuid4().hex}"

    def run(self, statement: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(statement.format(table=self.table).encode())
            return cursor.fetchall() if cursor.description else []

    def open(
        self,
        spark: SparkSession,
        *,
        committed: int = -1,
        receipt: dict[str, Any] | None = None,
        table: str | None = None,
        key: str | None = None,
    ) -> SinkWriter:
        mode: Any = {"mode": "upsert", "key": [key]} if key else {}
        writer = Postgres(self.dsn, table or self.table, **mode).open(spark, pipeline="test")
        writer.recover(committed, receipt, generation=9)
        return writer


@pytest.fixture
def database(postgres_dsn: str) -> Database:
    return Database(postgres_dsn)


def test_rows_of_a_task_that_did_not_count_are_left_out(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = database.open(spark)
    receipt = writer.write(numbers(0, 10), batch(0))
    # What a task leaves that committed its copy and died before it could answer.
    database.run(f"insert into {receipt['staging']} select id, -1, 0 from {receipt['staging']}")
    writer.publish(0, receipt)
    assert database.run("select count(*), count(distinct id) from {table}") == [(10, 10)]


def test_two_drivers_that_publish_one_batch_give_it_once(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writers = [database.open(spark) for _ in range(2)]
    receipts = [
        writer.write(numbers(0, 500), batch(0, generation=generation))
        for generation, writer in enumerate(writers)
    ]
    start = threading.Barrier(2)

    def publish(writer: SinkWriter, receipt: dict[str, Any]) -> None:
        start.wait()
        writer.publish(0, receipt)

    threads = [threading.Thread(target=publish, args=pair) for pair in zip(writers, receipts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.run("select count(*), count(distinct id) from {table}") == [(500, 500)]


def test_nothing_staged_stays_behind(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    orphan = database.open(spark).write(numbers(0, 1), batch(0, generation=0))["staging"]
    writer = database.open(spark)
    writer.publish(0, writer.write(numbers(0, 1), batch(0)))
    waiting = writer.write(numbers(1, 2), batch(1))  # committed, but not published
    restarted = database.open(spark, committed=1, receipt=waiting)
    staged = {orphan, waiting["staging"]}

    def left() -> set[str]:
        return staged & {name for (name,) in database.run("select tablename from pg_tables")}

    assert left() == {waiting["staging"]}
    restarted.publish(1, waiting)
    assert left() == set()
    assert database.run("select count(*) from {table}") == [(2,)]


def test_batches_share_a_staging_table_and_an_entry(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.sinks.postgres_writer._STAGED_BYTES", 10_000)
    writer = database.open(spark)
    receipts = []
    for batch_id in range(4):
        receipts.append(writer.write(numbers(500 * batch_id, 500 * batch_id + 500), batch(batch_id)))
        writer.publish(batch_id, receipts[-1])
    (staging,) = {receipt["staging"] for receipt in receipts}
    assert database.run(f"select count(*) from {staging}") == [(0,)]  # emptied when it had grown
    entries = "select batch_id, rows from tidegate_batches where target = '{table}'"
    assert database.run(entries) == [(3, 500)]
    for batch_id, receipt in enumerate(receipts):  # as a driver that was held up
        writer.publish(batch_id, receipt)
    assert database.run("select count(*), count(distinct id) from {table}") == [(2000, 2000)]


def test_table_that_lacks_batches_is_refused(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = database.open(spark)
    receipt = writer.write(numbers(0, 1), batch(0))
    writer.publish(0, receipt)
    with pytest.raises(SinkError, match="up to 0 only, but the checkpoint has published 4"):
        database.open(spark, committed=5, receipt=receipt)


def test_upsert_keeps_the_last_row_of_a_key(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = database.open(spark, key="k")
    # Within a batch by the order of rows, across batches by that of batches; null is a key like others.
    rows = numbers(0, 90).selectExpr("if(id % 3 = 0, null, id % 3) as k", "id as `last %`")
    receipts = [
        writer.write(rows, batch(0)),
        writer.write(rows.where("k = 2 or k is null").selectExpr("k", "-`last %` as `last %`"), batch(1)),
    ]
    for batch_id in (0, 1, 0, 1):
        writer.publish(batch_id, receipts[batch_id])
    found = database.run('select k, "last %%" from {table} order by k'.replace("%%", "%"))
    assert found == [(1, 88), (2, -89), (None, -87)]


def test_upsert_needs_a_unique_index_on_the_key(database: Database, spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as id")
    writer = database.open(spark, key="id")
    writer.check(stream)
    with pytest.raises(SinkError, match="no column value, which is in the key"):
        database.open(spark, key="value").check(stream)
    database.run("create table {table} (id bigint)")
    with pytest.raises(SinkError, match=r"no unique index on \(id\)"):
        writer.check(stream)
    database.run("alter table {table} add constraint once unique (id)")
    with pytest.raises(SinkError, match=r"column id of the key .* may be null"):
        writer.check(stream)
    database.run("alter table {table} alter id set not null")
    writer.check(stream)


def test_unique_key_behind_updates_is_refused_before_the_start(
    database: Database, spark: SparkSession
) -> None:
    database.run("create table {table} (id bigint primary key, n bigint)")
    with pytest.raises(SinkError, match=r'takes each \(id\) only once.*mode="upsert", key=\[\'id\'\]'):
        database.open(spark).check_updates(["id"])
    database.open(spark).check_updates(["other"])
    database.open(spark, key="id").check_updates(["id"])


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("id bigint check (id < 5)", "violates check constraint"),
        ("id bigint unique", "violates unique constraint"),
        ("id bigint unique deferrable initially deferred", "violates unique constraint"),
    ],
)
def test_constraint_strikes_before_the_commit(
    columns: str, problem: str, database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    database.run(f"create table {{table}} ({columns})")
    writer = database.open(spark)
    writer.publish(0, writer.write(numbers(0, 3), batch(0)))
    with pytest.raises(Exception, match=problem):
        writer.write(numbers(0, 10), batch(1))
    assert database.run("select count(*) from {table}") == [(3,)]
    writer.publish(1, writer.write(numbers(3, 5), batch(1, number=1)))
    assert database.run("select count(*) from {table}") == [(5,)]


@pytest.mark.parametrize("key", [None, "word"])
def test_value_too_long_for_an_index_strikes_before_the_commit(
    key: str | None, database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    database.run("create table {table} (word text not null)")
    database.run(f"create {'unique' if key else ''} index on {{table}} (word)")
    writer = database.open(spark, key=key)
    # What can be compressed fits.
    writer.publish(0, writer.write(numbers(0, 3).selectExpr("repeat(id, 5000) as word"), batch(0)))
    noise = "concat_ws('', transform(sequence(1, 60), x -> sha2(cast(id * 1000 + x as string), 256))) as word"
    with pytest.raises(Exception, match="exceeds btree"):
        writer.write(numbers(0, 3).selectExpr(noise), batch(1))
    writer.publish(1, writer.write(numbers(3, 6).selectExpr("repeat(id, 5000) as word"), batch(1, number=1)))
    assert database.run("select count(*) from {table}") == [(6,)]


@pytest.mark.parametrize(
    ("guard", "problem"),
    [
        ("create view {view} as select id from {table} where id < 5 with check option", "check option"),
        ("create view {view} as select id from {table}; create unique index on {table} (id)", "unique"),
        ("create view {view} as select id from {table}; create index on {table} ((1 / (id - 7)))", "zero"),
    ],
)
def test_what_a_view_stands_for_strikes_before_the_commit(
    guard: str, problem: str, database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    view = f"{database.table}_view"
    database.run("create table {table} (id bigint)")
    database.run(guard.replace("{view}", view))
    writer = database.open(spark, table=view)
    writer.publish(0, writer.write(numbers(0, 3), batch(0)))
    with pytest.raises(Exception, match=problem):
        writer.write(numbers(2, 10), batch(1))
    writer.publish(1, writer.write(numbers(3, 5), batch(1, number=1)))
    assert database.run("select count(*) from {table}") == [(5,)]


@pytest.mark.parametrize(
    "guard",
    [
        "create index on {table} ((1 / id))",
        "create index on {table} (id) where 1 / id > 0",
        "create index on {table} using brin (id)",
        "create rule refuse as on insert to {table} do also notify {table}",
        "alter table {table} enable row level security",
    ],
)
def test_tables_whose_rows_are_inserted_on_trial(guard: str, database: Database) -> None:
    from tidegate.sinks.postgres_copy import connect
    from tidegate.sinks.postgres_table import described

    database.run("create table {table} (id bigint)")
    with connect(database.dsn) as connection:
        assert not described(connection, database.table).may_refuse(["id"], [])
        database.run(guard)
        assert described(connection, database.table).may_refuse(["id"], [])


def test_percent_signs_in_names(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = database.open(spark, table=f"{database.table} %s")
    writer.publish(0, writer.write(numbers(0, 3).selectExpr("id as `humidity %`"), batch(0)))
    assert database.run('select count("humidity %") from "{table} %s"') == [(3,)]


def test_staging_table_that_is_locked_does_not_stop_the_start(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setattr("tidegate.sinks.postgres_writer._LOCK_SECONDS", 1)
    writer = database.open(spark)
    stuck, free = (
        writer.write(numbers(0, 1), batch(0, generation=generation))["staging"] for generation in range(2)
    )

    def left() -> set[str]:
        return {stuck, free} & {name for (name,) in database.run("select tablename from pg_tables")}

    with psycopg.connect(database.dsn) as zombie:
        zombie.execute(f"lock table {stuck} in row exclusive mode".encode())  # what COPY takes
        database.open(spark)
        assert left() == {stuck}
    database.open(spark)
    assert left() == set()


def test_staged_rows_survive_a_crash_of_the_server(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    staging = database.open(spark).write(numbers(0, 1), batch(0))["staging"]
    assert database.run(f"select relpersistence from pg_class where relname = '{staging}'") == [("p",)]


def test_table_with_later_batches_is_refused(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = database.open(spark)
    for batch_id in range(2):
        writer.publish(batch_id, writer.write(numbers(0, 1), batch(batch_id)))
    with pytest.raises(
        SinkError, match=r"holds batches up to 1, but the checkpoint is new: .*ledger are lost"
    ):
        database.open(spark)


def test_lost_connection_is_made_anew(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = database.open(spark)
    receipt = writer.write(numbers(0, 10), batch(0))
    database.run("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tidegate'")
    with pytest.raises(SinkError):
        writer.publish(0, receipt)
    writer.publish(0, receipt)
    assert database.run("select count(*) from {table}") == [(10,)]


def test_table_in_a_schema_and_with_odd_names(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    database.run('create schema if not exists "Odd Place"')
    writer = database.open(spark, table=f"Odd Place.{database.table}")
    writer.publish(0, writer.write(numbers(0, 3).selectExpr('id as `My "id"`', "'x' as `a.b`"), batch(0)))
    assert database.run('select "My ""id""", "a.b" from "Odd Place".{table} order by 1') == [
        (0, "x"),
        (1, "x"),
        (2, "x"),
    ]


def test_nested_values_become_json(database: Database, spark: SparkSession, batch: Batch) -> None:
    writer = database.open(spark)
    rows = spark.sql("""
        select array(1, null) list, map('k', 'ü"\\n') pairs,
            named_struct('at', timestamp'2024-02-29 12:34:56.123456Z', 'none', null) parts
    """).selectExpr("list", "pairs", "named_struct('at', parts.at, 'none', cast(parts.none as int)) parts")
    writer.publish(0, writer.write(rows, batch(0)))
    parts = {"at": "2024-02-29T12:34:56.123456Z", "none": None}
    assert database.run("select * from {table}") == [([1, None], {"k": 'ü"\n'}, parts)]


def test_own_table_may_have_wider_and_further_columns(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    database.run("create table {table} (place serial primary key, note text, id numeric not null)")
    writer = database.open(spark)
    writer.publish(0, writer.write(numbers(0, 3), batch(0)))
    assert [tuple(row) for row in database.run("select place > 0, note, id from {table} order by id")] == [
        (True, None, 0),
        (True, None, 1),
        (True, None, 2),
    ]


def test_own_table_that_does_not_fit_is_refused(
    database: Database, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    database.run("create table {table} (id text, other int not null)")
    writer = database.open(spark)
    with pytest.raises(SinkError) as caught:
        writer.write(numbers(0, 3).selectExpr("id", "'a' as word"), batch(0))
    message = str(caught.value)
    assert "column id is text but must be int8 or numeric" in message
    assert "column word (text) is missing" in message
    assert "column other is required, but the rows do not have it" in message


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (["value as id", "'a' as word"], "column word .* is missing"),
        (["'a' as id"], "column id is int8 but must be"),
        (["value as id", "interval '1' day as span"], "column span is interval"),
        (["value as id", "value as id"], "columns with the same name"),
    ],
)
def test_columns_that_do_not_fit_are_found_before_the_start(
    columns: list[str], problem: str, database: Database, spark: SparkSession
) -> None:
    stream = spark.readStream.format("rate").load()
    database.run("create table {table} (id bigint)")
    writer = database.open(spark)
    with pytest.raises(SinkError, match=problem):
        writer.check(stream.selectExpr(*columns))
    writer.check(stream.selectExpr("value as id"))


def test_checking_creates_no_table(database: Database, spark: SparkSession) -> None:
    database.open(spark).check(spark.readStream.format("rate").load())
    assert database.run("select to_regclass('{table}') is null") == [(True,)]


def test_type_without_a_column_is_refused(database: Database, spark: SparkSession, batch: Batch) -> None:
    with pytest.raises(SinkError, match=r"column span is interval .*cast it"):
        database.open(spark).write(spark.sql("select interval '1' day as span"), batch(0))


def test_password_is_never_shown(postgres_dsn: str, spark: SparkSession) -> None:
    wrong = postgres_dsn.replace(":secret@", ":hunter2@")
    sink = Postgres(wrong, "rows")
    with pytest.raises(SinkError) as caught:
        sink.open(spark, pipeline="test")
    shown = [repr(sink), sink.describe(), sink.location, str(caught.value), repr(caught.value.__cause__)]
    assert not [text for text in shown if "hunter2" in text]
    assert "password authentication failed" in str(caught.value)


@pytest.mark.parametrize(
    ("dsn", "location"),
    [
        ("postgresql://me:pw@db:6543/shop?sslmode=require", "postgres:db:6543/shop/rows"),
        ("postgresql:///shop", "postgres:localhost:5432/shop/rows"),
        ("host=db password='p w' dbname=shop", "postgres:db:5432/shop/rows"),
    ],
)
def test_location_names_the_server_and_no_secret(dsn: str, location: str) -> None:
    assert Postgres(dsn, "rows").location == location


def test_server_that_is_not_there_is_named(spark: SparkSession) -> None:
    with pytest.raises(SinkError, match=r"Postgres rows on 127\.0\.0\.1:1/db: .*refused"):
        Postgres("postgresql://me:pw@127.0.0.1:1/db", "rows").open(spark, pipeline="test")


def test_text_that_is_no_dsn_is_not_repeated(spark: SparkSession) -> None:
    with pytest.raises(SinkError, match="cannot parse") as caught:
        Postgres("me:hunter2@db", "rows").open(spark, pipeline="test")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("table", ["", "a.b.c", ".rows"])
def test_table_name_is_checked(table: str) -> None:
    with pytest.raises(PipelineError, match=r"Postgres \(declared at .*table must be"):
        Postgres("postgresql://db", table)


def test_missing_driver_names_the_install_line(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tidegate\[postgres\]'"):
        Postgres("postgresql://db", "rows").open(spark, pipeline="test")
