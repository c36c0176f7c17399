"""From a topic to a topic through the engine, on a real broker."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

import tidegate as tg
from tests.conftest import Run
from tidegate.sinks.kafka import read_committed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

MESSAGES = 3_000


@pytest.fixture
def topic(kafka_bootstrap: str) -> str:
    """A topic of two partitions with numbered messages, two of them unreadable."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    name = f"in-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])[name].result(30)
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for number in range(MESSAGES):
        producer.produce(name, json.dumps({"id": number}).encode(), partition=number % 2)
    for broken in (b"no json", b"[1]"):
        producer.produce(name, broken, partition=0)
    assert producer.flush(30) == 0
    return name


def test_topic_to_topic(run: Run, kafka_bootstrap: str, topic: str, tmp_path: Path) -> None:
    p = tg.Pipeline("topics")
    numbers = p.source(tg.sources.Kafka(kafka_bootstrap, topic, schema="id bigint"))
    doubled = numbers.filter("id % 2 = 0").select("id", twice="id * 2")
    doubled.sink(tg.sinks.Kafka(kafka_bootstrap, f"{topic}-out", key="cast(id % 10 as string)", partitions=2))
    summary, told = run(p, admission__initial_rows=500, admission__max_rows=700)
    assert (summary.rows_in, summary.rows_out, summary.dead_letters) == (MESSAGES + 2, MESSAGES // 2, 2)
    assert told[0].rows_in <= 500
    # The limits of later batches were set while the query ran: they are no longer what it began with.
    assert any(batch.rows_in != 500 for batch in told[1:-1])
    assert all(batch.rows_in <= 700 for batch in told)
    assert told[-1].lag == 0
    assert told[0].lag == MESSAGES + 2 - told[0].rows_in
    messages = read_committed(kafka_bootstrap, f"{topic}-out")
    got = Counter(json.loads(message.value or b"")["twice"] for message in messages)
    assert got == Counter(range(0, 2 * MESSAGES, 4))
    dead = tg.read(tmp_path / "checkpoint/dead-letters/source-1")
    assert sorted(dead["raw"].to_pylist()) == ["[1]", "no json"]
