"""What is special about the Kafka sink, and its reader."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException

from tidegate.errors import MissingExtraError, PipelineError, SinkError
from tidegate.sinks import Kafka
from tidegate.sinks.kafka import Message, Reader, _Writer, read_committed
from tidegate.sinks.sink import Attempt
from tidegate.spark.kafka_admin import partition_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

Numbers = Callable[[int, int], "DataFrame"]
Batch = Callable[..., Attempt]


@pytest.fixture
def topic() -> str:
    return f"rows-{uuid4().hex}"


def ids(messages: list[Message]) -> list[int]:
    return sorted(json.loads(message.value or b"")["id"] for message in messages)


def places(messages: list[Message]) -> set[tuple[Any, ...]]:
    return {(m.partition, m.batch_id, m.sequence, m.key, m.value) for m in messages}


def append(bootstrap: str, topic: str, messages: list[Message]) -> None:
    """Append copies of messages, headers and all."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for m in messages:
        headers: list[tuple[str, str | bytes | None]] = [
            (f"tidegate-{name}", str(text).encode())
            for name, text in (("pipeline", m.pipeline), ("batch", m.batch_id), ("sequence", m.sequence))
            if text is not None
        ]
        producer.produce(topic, key=m.key, value=m.value, partition=m.partition, headers=headers)
    producer.flush()


def test_a_topic_that_the_broker_has_not_heard_of_yet_is_awaited(
    kafka_bootstrap: str, topic: str, spark: SparkSession
) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    settings.setProperty("bootstrap.servers", kafka_bootstrap)
    with (
        closing(jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)) as admin,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(partition_count, jvm, admin, topic)
        client = AdminClient({"bootstrap.servers": kafka_bootstrap})
        client.create_topics([NewTopic(topic, 2)])[topic].result()
        assert asked.result() == 2


def test_interrupted_batch_is_read_once(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    rehearsal = Kafka(kafka_bootstrap, f"{topic}-rehearsal", partitions=3).open(spark, pipeline="test")
    rehearsal.write(numbers(0, 100), batch(0))
    whole = read_committed(kafka_bootstrap, f"{topic}-rehearsal")
    begun = [m for m in whole if (m.sequence or 0) < 5 + 5 * m.partition]
    assert 0 < len(begun) < len(whole)

    writer = Kafka(kafka_bootstrap, topic, partitions=3).open(spark, pipeline="test")
    append(kafka_bootstrap, topic, begun)
    writer.write(numbers(0, 100), batch(0, number=1))
    writer.write(numbers(100, 200), batch(1))
    append(kafka_bootstrap, topic, begun)  # a zombie that wakes up much later
    assert ids(read_committed(kafka_bootstrap, topic)) == list(range(200))


def test_numbering_does_not_depend_on_parallelism(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    written = []
    for partitions in (1, 4):
        name = f"{topic}-{partitions}"
        writer = Kafka(kafka_bootstrap, name, key="cast(id % 7 as string)", partitions=3).open(
            spark, pipeline="test"
        )
        rows = numbers(0, 200).unionAll(numbers(0, 50)).repartition(partitions, "id")
        writer.write(rows, batch(7))
        written.append(places(read_committed(kafka_bootstrap, name)))
    assert written[0] == written[1]
    assert len(written[0]) == 250


def test_sequence_counts_from_zero_in_each_partition(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    Kafka(kafka_bootstrap, topic, partitions=2).open(spark, pipeline="test").write(numbers(0, 50), batch(3))
    messages = read_committed(kafka_bootstrap, topic)
    for partition in range(2):
        mine = [m for m in messages if m.partition == partition]
        assert [m.sequence for m in mine] == list(range(len(mine)))
        assert {(m.pipeline, m.batch_id) for m in mine} == {("test", 3)}


def test_one_key_is_in_one_partition(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    sink = Kafka(kafka_bootstrap, topic, key="id % 5", value="concat('v', id)", partitions=3)
    sink.open(spark, pipeline="test").write(numbers(0, 100), batch(0))
    messages = read_committed(kafka_bootstrap, topic)
    assert {m.key for m in messages} == {b"0", b"1", b"2", b"3", b"4"}
    assert len({(m.key, m.partition) for m in messages}) == 5
    assert {m.value for m in messages} == {f"v{n}".encode() for n in range(100)}


def test_rows_without_a_key_are_in_one_partition(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    sink = Kafka(kafka_bootstrap, topic, key="if(id % 2 = 0, null, id)", partitions=3)
    sink.open(spark, pipeline="test").write(numbers(0, 100), batch(0))
    messages = read_committed(kafka_bootstrap, topic)
    assert len({m.partition for m in messages if m.key is None}) == 1
    assert len({m.partition for m in messages}) == 3


def test_row_is_json_with_its_nulls(
    kafka_bootstrap: str, topic: str, spark: SparkSession, batch: Batch
) -> None:
    rows = spark.sql(
        "select 1 id, timestamp'2024-02-29 12:34:56.123456Z' at, cast(null as int) none, array('ü') list"
    )
    Kafka(kafka_bootstrap, topic).open(spark, pipeline="test").write(rows, batch(0))
    (message,) = read_committed(kafka_bootstrap, topic)
    assert message.key is None
    assert json.loads(message.value or b"") == {
        "id": 1,
        "at": "2024-02-29T12:34:56.123456Z",
        "none": None,
        "list": ["ü"],
    }


def test_reader_goes_on_where_another_stopped(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = Kafka(kafka_bootstrap, topic, partitions=3).open(spark, pipeline="test")
    writer.write(numbers(0, 50), batch(0))
    with Reader(kafka_bootstrap, topic) as reader:
        first = list(islice(reader, 20))
        saved = json.dumps(reader.positions)
    writer.write(numbers(0, 50), batch(0, number=1))
    writer.write(numbers(50, 60), batch(1))
    with Reader(kafka_bootstrap, topic, positions=json.loads(saved)) as reader:
        rest = list(reader.drain())
        assert list(reader.drain()) == []
    assert len(first) == 20
    assert ids(first + rest) == list(range(60))


def test_pipelines_that_share_a_topic_do_not_hide_each_other(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    for number, pipeline in enumerate(("one", "two")):
        writer = Kafka(kafka_bootstrap, topic, partitions=1).open(spark, pipeline=pipeline)
        writer.write(numbers(10 * number, 10 * number + 10), batch(5 - number))
    assert ids(read_committed(kafka_bootstrap, topic)) == list(range(20))


def test_messages_of_others_are_handed_on(kafka_bootstrap: str, topic: str, spark: SparkSession) -> None:
    Kafka(kafka_bootstrap, topic, partitions=1).open(spark, pipeline="test")
    foreign = Message(b"k", b"v", 0, 0, 0, None, None, None)
    append(kafka_bootstrap, topic, [foreign, foreign])
    messages = read_committed(kafka_bootstrap, topic)
    assert [(m.key, m.value, m.pipeline, m.batch_id) for m in messages] == [(b"k", b"v", None, None)] * 2


def test_partitions_are_those_of_the_topic(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    Kafka(kafka_bootstrap, topic, partitions=4).open(spark, pipeline="test")
    again = Kafka(kafka_bootstrap, topic, partitions=2).open(spark, pipeline="test")
    assert again.write(numbers(0, 1), batch(0))["partitions"] == 4


def test_batch_that_was_begun_keeps_its_partitions_when_some_are_added() -> None:
    """Whatever was interrupted: in another partition, its messages would be read twice or never."""
    sink = Kafka("127.0.0.1:1", "rows")
    began = _Writer(sink, "test", 2)
    receipts = {4: {"partitions": began.partitions_of(5)}}
    grown = _Writer(sink, "test", 3)
    grown.recover(4, receipts[4], generation=2)
    assert [grown.partitions_of(batch_id) for batch_id in (4, 5, 6, 7)] == [2, 2, 3, 3]
    receipts[5] = {"partitions": grown.partitions_of(6)}
    for committed, wanted in ((4, 2), (5, 3)):  # interrupted in batch 5, or in batch 6
        again = _Writer(sink, "test", 4)
        again.recover(committed, receipts[committed], generation=3)
        assert again.partitions_of(committed + 1) == wanted
        assert again.partitions_of(committed + 2) == 4


def test_partitions_that_are_added_are_written_to_after_the_batch_that_was_begun(
    kafka_bootstrap: str, topic: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions

    writer = Kafka(kafka_bootstrap, topic, partitions=1).open(spark, pipeline="test")
    receipt = writer.write(numbers(0, 10), batch(0))
    writer.write(numbers(10, 20), batch(1))  # interrupted: it is not committed
    client = AdminClient({"bootstrap.servers": kafka_bootstrap})
    client.create_partitions([NewPartitions(topic, 3)])[topic].result()
    again = Kafka(kafka_bootstrap, topic).open(spark, pipeline="test")
    again.recover(0, receipt, generation=2)
    again.write(numbers(10, 20), batch(1, generation=2))
    again.write(numbers(20, 60), batch(2, generation=2))
    messages = read_committed(kafka_bootstrap, topic)
    assert ids(messages) == list(range(60))
    assert {m.partition for m in messages} == {0, 1, 2}


def test_broker_that_is_not_there_is_named(spark: SparkSession) -> None:
    options = {"kafka.default.api.timeout.ms": "1500", "kafka.request.timeout.ms": "1000"}
    with pytest.raises(SinkError, match=r"Kafka rows at 127\.0\.0\.1:1 cannot be used: .*Timeout"):
        Kafka("127.0.0.1:1", "rows", options=options).open(spark, pipeline="test")


def test_options_are_never_shown() -> None:
    sink = Kafka("host:9092", "rows", options={"kafka.sasl.jaas.config": "hunter2"})
    assert "hunter2" not in f"{sink!r} {sink.describe()} {sink.location}"
    assert sink.location == "kafka:host:9092/rows"


@pytest.mark.parametrize("fields", [("", "rows"), ("host", ""), ("host", "rows", None, None, 0)])
def test_what_is_declared_is_checked(fields: tuple[Any, ...]) -> None:
    with pytest.raises(PipelineError, match=r"Kafka \(declared at .*\)"):
        Kafka(*fields)


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        (Kafka("host:9092", "rows", key="nowhere"), "nowhere"),
        (Kafka("host:9092", "rows", value="concat(value"), "Syntax error"),
        (Kafka("host:9092", "rows", value="no_function(value)"), "no_function"),
    ],
)
def test_expressions_that_do_not_fit_are_found_before_the_start(
    sink: Kafka, problem: str, spark: SparkSession
) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(AnalysisException, match=problem):
        _Writer(sink, "test", 1).check(stream)
    _Writer(Kafka("host:9092", "rows", key="value", value="timestamp"), "test", 1).check(stream)


def test_missing_client_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tidegate\[kafka\]'"):
        Reader("host:9092", "rows")
