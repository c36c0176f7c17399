"""Brokers and topics that are not there, found without Spark."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest

import tidegate as tg
from tidegate.errors import PipelineError, SinkError
from tidegate.sources.kafka_broker import problem


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_broker_that_is_away_is_named(nobody: str) -> None:
    found = problem(nobody, "orders", {})
    assert found == (
        f"no broker at {nobody} can be reached (Connection refused); start it, or correct `bootstrap`"
    )


def test_source_and_sink_say_so_before_spark_starts(nobody: str) -> None:
    with pytest.raises(PipelineError, match=f"no broker at {nobody}"):
        tg.sources.Kafka(nobody, "orders").check()
    with pytest.raises(SinkError, match=f"Kafka orders: no broker at {nobody}"):
        tg.sinks.Kafka(nobody, "orders").check()


def test_broker_that_does_not_answer_is_named(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.sources.kafka_broker._SECONDS", 0.2)
    assert f"the broker at {mute} does not answer" in (problem(mute, "orders", {}) or "")


def test_one_broker_of_several_is_enough(nobody: str, mute: str) -> None:
    assert problem(f"{nobody},{mute}", "orders", {"kafka.security.protocol": "SSL"}) is None


def test_address_without_a_port_is_named() -> None:
    assert "'localhost' is not host:port" in (problem("localhost", "orders", {}) or "")


def test_without_a_client_the_connection_alone_counts(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert problem(mute, "orders", {}) is None


@pytest.mark.kafka
def test_topic_that_is_missing_is_named_and_not_created(kafka_bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    name = f"orders-{uuid4().hex}"
    client = AdminClient({"bootstrap.servers": kafka_bootstrap})
    client.create_topics([NewTopic(name, 1)])[name].result()
    tg.sources.Kafka(kafka_bootstrap, name).check()
    for _ in range(2):
        with pytest.raises(PipelineError, match=f"there is no topic '{name}s' at .*did you mean '{name}'"):
            tg.sources.Kafka(kafka_bootstrap, f"{name}s").check()
    tg.sinks.Kafka(kafka_bootstrap, f"{name}s").check()
