"""The Kafka source, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tidegate as tg
from tidegate import config
from tidegate.errors import PipelineError
from tidegate.sinks.kafka import read_committed
from tidegate.sources import Kafka
from tidegate.sources.source import RAW, REASON, Limit, Position

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

kafka = pytest.mark.kafka
spark_test = pytest.mark.spark


@pytest.fixture
def topic(kafka_bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    name = f"rows-{uuid4().hex}"
    client = AdminClient({"bootstrap.servers": kafka_bootstrap})
    client.create_topics([NewTopic(name, 2)])[name].result()
    return name


def send(bootstrap: str, topic: str, values: Sequence[bytes | None]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, key=b"k", value=value, partition=number % 2)
    producer.flush()


def rows_of(source: Kafka, spark: SparkSession, tmp_path: Path, first_rows: int | None = None) -> list[Row]:
    """Everything that is in the topic now, by a query with a checkpoint of its own."""
    name = f"q{uuid4().hex}"
    query = (
        source.load(spark, parallelism=2, first_rows=first_rows)
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / name))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table(name).collect()


@kafka
@spark_test
def test_raw_messages_come_as_they_are(
    kafka_bootstrap: str, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    send(kafka_bootstrap, topic, [b"\xff", None])
    source = Kafka(kafka_bootstrap, topic, event_time="timestamp")
    assert not source.fallible
    rows = rows_of(source, spark, tmp_path)
    assert list(rows[0].asDict()) == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
    ]
    assert {(bytes(r.key), r.value and bytes(r.value), r.topic, r.partition, r.offset) for r in rows} == {
        (b"k", b"\xff", topic, 0, 0),
        (b"k", None, topic, 1, 0),
    }


@kafka
@spark_test
def test_messages_that_do_not_fit_come_with_text_and_reason(
    kafka_bootstrap: str, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    unfit = {
        b"{": "not JSON, or more than one object",
        b"  ": "not JSON, or more than one object",
        b'{"id":1} {"id":2}': "not JSON, or more than one object",
        b'{"id":1} tail': "not JSON, or more than one object",
        b"[1]": "not a JSON object",
        b"1": "not a JSON object",
        b"null": "not a JSON object",
        b'{"id":"one"}': "a value does not fit the type of its column",
        b'{"id":1,"at":"yesterday"}': "a value does not fit the type of its column",
        b'{"id":1,"word":"\xff"}': "not UTF-8",
        None: "no value",
    }
    good = [b'{"id":1,"word":"a}b","other":{"x":1}}', b' {"word":"\xc3\xbc"} ', b"{}"]
    send(kafka_bootstrap, topic, [*unfit, *good])
    source = Kafka(kafka_bootstrap, topic, "id bigint, word string, at timestamp")
    assert source.fallible
    rows = rows_of(source, spark, tmp_path)
    bad = {row[RAW]: row[REASON] for row in rows if row[REASON] is not None}
    assert bad == {(raw or b"").decode(errors="replace"): why for raw, why in unfit.items()}
    fine = [(row.id, row.word, row.at, row[RAW]) for row in rows if row[REASON] is None]
    assert sorted(fine, key=str) == sorted(
        [(1, "a}b", None, None), (None, "ü", None, None), (None, None, None, None)], key=str
    )


@kafka
@spark_test
def test_start_may_be_a_position(
    kafka_bootstrap: str, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    send(kafka_bootstrap, topic, [str(number).encode() for number in range(10)])
    start = json.dumps({topic: {"0": 4, "1": -1}})
    rows = rows_of(Kafka(kafka_bootstrap, topic, start=start), spark, tmp_path)
    assert [(row.partition, bytes(row.value)) for row in rows] == [(0, b"8")]


@kafka
@spark_test
def test_pipeline_from_topic_to_topic(
    kafka_bootstrap: str, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    def messages(numbers: range) -> list[bytes | None]:
        return [json.dumps({"id": number}).encode() for number in numbers]

    def run() -> list[tg.BatchProgress]:
        pipeline = tg.Pipeline("doubling")
        source = pipeline.source(Kafka(kafka_bootstrap, topic, "id bigint"))
        doubled = source.with_column("double", "id * 2")
        doubled.sink(tg.sinks.Kafka(kafka_bootstrap, f"{topic}-out", partitions=2))
        settings: dict[str, Any] = {
            "engine.interval": "100 ms",
            "engine.checkpoint": str(tmp_path / "checkpoint"),
            "admission.initial_rows": 40,
            "admission.min_rows": 10,
        }
        told: list[tg.BatchProgress] = []
        effective = config.load(code=pipeline.config, environ={}, overrides=settings)
        pipeline.run(config=effective, listeners=[told.append], until_done=True)
        return told

    send(kafka_bootstrap, topic, [*messages(range(100)), b"nonsense"])
    first = run()
    send(kafka_bootstrap, topic, messages(range(100, 120)))
    second = run()
    assert sum(p.rows_in for p in first) == 101
    assert sum(p.dead_letters for p in first) == 1
    assert first[0].rows_in <= 41  # limits are rounded per partition
    assert (first[0].lag or 0) > 0
    assert first[-1].lag == 0
    assert sum(p.rows_in for p in second) == 20
    out = [json.loads(message.value or b"") for message in read_committed(kafka_bootstrap, f"{topic}-out")]
    assert sorted(row["id"] for row in out) == list(range(120))
    assert all(row["double"] == 2 * row["id"] for row in out)


def test_lag_is_what_lies_beyond_the_cut() -> None:
    source = Kafka("host:9092", "rows")
    latest, end = {"rows": {"0": 12, "1": 7, "2": 3}}, {"rows": {"0": 10, "1": 7}}
    assert source.lag(Position(start=None, end=end, latest=latest)) == 5
    assert source.lag(Position(start=None, end=end, latest=None)) is None


def test_limit_is_in_rows() -> None:
    assert Kafka("host:9092", "rows").limit(500, None) == Limit("rows", 500)


def test_place_and_line_show_no_option() -> None:
    source = Kafka("host:9092", "rows", "id int", options={"kafka.sasl.jaas.config": "hunter2"})
    assert source.location == "kafka:host:9092/rows"
    assert source.describe() == "Kafka rows (json)"
    assert "hunter2" not in repr(source)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"topic": ""}, "a topic"),
        ({"format": "avro"}, "format must be one of json, raw, not 'avro'"),
        ({"format": "json"}, "json messages need a schema"),
        ({"schema": {"id": "int"}}, "the schema is text, like"),
        ({"format": "raw", "schema": "id int"}, "a schema is only for json"),
        ({"event_time": "at"}, "can only be 'timestamp', not 'at'"),
        ({"options": {"failOnDataLoss": "false"}}, "option failOnDataLoss is set by the source"),
    ],
)
def test_what_is_declared_is_checked(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        Kafka(**{"bootstrap": "host:9092", "topic": "rows", **fields})


@spark_test
@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("id bigin", r"'id bigin' is not a schema: Unsupported data type \"BIGIN\"$"),
        ("id bigint, at timestamp", "event_time='when': there is no column 'when' among id, at"),
    ],
)
def test_schema_is_checked_before_anything_is_read(schema: str, problem: str, spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=problem):
        Kafka("host:9092", "rows", schema, event_time="when").load(spark, parallelism=1, first_rows=None)
