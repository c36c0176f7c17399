"""The reader of a topic: which messages it hands on. Without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import pytest

from tidegate.errors import SinkError
from tidegate.sinks import Kafka, kafka_reader
from tidegate.sinks.kafka import _Writer
from tidegate.sinks.kafka_reader import Message, Reader, read_committed, takes

Number = tuple[int, int]
"""Batch and sequence."""


def message(number: Number | None, offset: int = 0, pipeline: str = "p") -> Message:
    if number is None:
        return Message(b"k", b"v", 0, offset, 0, None, None, None)
    return Message(b"k", b"v", 0, offset, 0, pipeline, *number)


def taken(numbers: Iterable[Number | None], *, start: int = 0) -> list[Number | None]:
    """What is handed on of messages at offsets from `start` on; None leaves an offset out."""
    at = kafka_reader._start_at(start)
    found = [message(number, start + place) for place, number in enumerate(numbers) if number is not None]
    return [(m.batch_id or 0, m.sequence or 0) for m in found if takes(at, m)]


def batch(batch_id: int, *sequences: int) -> list[Number]:
    return [(batch_id, sequence) for sequence in sequences]


def test_message_that_a_failed_attempt_left_out_is_taken_from_the_next() -> None:
    failed, again = batch(0, 0, 1, 2, 3, 5, 6, 7), batch(0, *range(8))
    assert taken([*failed, *again, *batch(1, 0, 1)]) == [*again, *batch(1, 0, 1)]


def test_batch_whose_first_message_was_refused_is_taken_whole_from_the_next_attempt() -> None:
    assert taken([*batch(3, 0), *batch(4, 1, 2), *batch(4, 0, 1, 2)]) == [*batch(3, 0), *batch(4, 0, 1, 2)]


def test_attempts_that_are_interleaved_count_once() -> None:
    first, second = batch(0, *range(6)), batch(0, *range(6))
    mixed = [number for pair in zip(first, second, strict=True) for number in pair]
    assert taken(mixed) == first


def test_batches_may_have_no_message_in_a_partition() -> None:
    assert taken([*batch(2, 0), *batch(9, 0, 1)]) == [*batch(2, 0), *batch(9, 0, 1)]


@pytest.mark.parametrize("start", [0, 40])
def test_messages_that_the_broker_removed_are_not_awaited(start: int) -> None:
    compacted = [*batch(0, 0), None, *batch(0, 2, 3), None, *batch(1, 1)]
    assert taken(compacted, start=start) == [*batch(0, 0, 2, 3), *batch(1, 1)]


def test_topic_whose_head_is_gone_is_read_from_where_it_begins() -> None:
    assert taken([*batch(5, 3, 4), *batch(6, 0)], start=100) == [*batch(5, 3, 4), *batch(6, 0)]


def test_removed_message_is_remembered_over_those_of_others() -> None:
    at = kafka_reader._start_at(0)
    assert takes(at, message((0, 0), 0))
    assert takes(at, message(None, 2))  # offset 1 is gone
    assert takes(at, message((0, 2), 3))
    assert not takes(at, message((0, 4), 4))


@pytest.fixture
def topic() -> str:
    return f"rows-{uuid4().hex}"


def created(bootstrap: str, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(topic, partitions)])[topic].result()


def grown(bootstrap: str, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions

    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result()
    while len(client.list_topics(topic).topics[topic].partitions) < partitions:
        time.sleep(0.05)


def send(bootstrap: str, topic: str, numbers: Iterable[Number], partition: int = 0) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for batch_id, sequence in numbers:
        parts = {"pipeline": "p", "batch": batch_id, "sequence": sequence}
        headers: Any = [(f"tidegate-{name}", str(part).encode()) for name, part in parts.items()]
        producer.produce(topic, value=b"v", partition=partition, headers=headers)
    assert producer.flush(30) == 0


@pytest.mark.kafka
def test_gap_in_a_topic_is_filled_by_the_next_attempt(kafka_bootstrap: str, topic: str) -> None:
    created(kafka_bootstrap, topic, 1)
    send(kafka_bootstrap, topic, [*batch(0, 0, 1, 2, 3, 5, 6, 7), *batch(0, *range(8))])
    assert [m.sequence for m in read_committed(kafka_bootstrap, topic)] == list(range(8))


@pytest.mark.kafka
def test_partitions_that_are_added_are_read(
    kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "_REFRESH_SECONDS", 0.2)
    created(kafka_bootstrap, topic, 1)
    send(kafka_bootstrap, topic, batch(0, 0, 1))
    with Reader(kafka_bootstrap, topic) as reader:
        assert len(list(reader.drain())) == 2
        grown(kafka_bootstrap, topic, 2)
        send(kafka_bootstrap, topic, batch(1, 0, 1), partition=1)
        assert [(m.partition, m.sequence) for m in reader.drain()] == [(1, 0), (1, 1)]
        grown(kafka_bootstrap, topic, 3)
        send(kafka_bootstrap, topic, batch(2, 0), partition=2)
        assert next(iter(reader)).partition == 2
        saved = json.loads(json.dumps(reader.positions))
    with Reader(kafka_bootstrap, topic, positions=saved) as reader:
        assert list(reader.drain()) == []


def test_broker_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_reader, "_METADATA_SECONDS", 0.5)
    with pytest.raises(SinkError, match=r"cannot read topic rows at 127\.0\.0\.1:1: "):
        Reader("127.0.0.1:1", "rows", options={"log_level": 0})


@pytest.mark.kafka
def test_topic_that_is_not_there_is_named(kafka_bootstrap: str, topic: str) -> None:
    with pytest.raises(SinkError, match=f"cannot read topic {topic} at {kafka_bootstrap}: .*nknown"):
        Reader(kafka_bootstrap, topic)


@pytest.mark.kafka
def test_topic_with_later_batches_is_refused(kafka_bootstrap: str, topic: str) -> None:
    """Readers would take the next ones for repeats."""
    created(kafka_bootstrap, topic, 2)
    send(kafka_bootstrap, topic, (number for n in range(90) for number in batch(n, 0, 1, 2)))
    send(kafka_bootstrap, topic, [*batch(90, 0), *batch(91, 0, 2)], partition=1)
    writer = _Writer(Kafka(kafka_bootstrap, topic), "p", 2)
    other = _Writer(Kafka(kafka_bootstrap, topic), "other", 2)
    writer.recover(91, None, generation=2)
    writer.recover(90, None, generation=2)  # batch 91 was interrupted
    for committed, ends in ((-1, "is new"), (89, "ends with batch 89")):
        with pytest.raises(SinkError, match=f"holds batches up to 91, but the checkpoint {ends}: .*rename"):
            writer.recover(committed, None, generation=2)
        other.recover(committed, None, generation=2)


@pytest.mark.kafka
def test_topic_that_is_empty_or_not_known_yet_is_taken(kafka_bootstrap: str, topic: str) -> None:
    writer = _Writer(Kafka(kafka_bootstrap, topic), "p", 1)
    writer.recover(-1, None, generation=1)
    created(kafka_bootstrap, topic, 1)
    writer.recover(-1, None, generation=1)
