"""Kafka's admin client, as Spark's connector brings it along: a sink needs no other client installed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tidegate.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPAGATION = 10.0
"""Seconds that brokers have to hear of a new topic."""


def ensure_topic(
    spark: SparkSession, client: Mapping[str, str], topic: str, *, partitions: int | None
) -> int:
    """How many partitions a topic has. One that is missing is created, with `partitions` or else as many as
    the broker's default. `client` has the settings of a Kafka client. Raises SinkError."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, text in client.items():
        settings.setProperty(name, text)
    try:
        with closing(jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)) as admin:
            if topic not in set(admin.listTopics().names().get()):
                _create(jvm, admin, topic, partitions)
            return partition_count(jvm, admin, topic)
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        place = f"Kafka {topic} at {client['bootstrap.servers']}"
        raise SinkError(f"{place} cannot be used: {cause.toString()}") from None


def partition_count(jvm: Any, admin: Any, topic: str) -> int:
    """Of a topic that exists. A broker may not have heard of a new one yet, which passes soon."""
    from py4j.protocol import Py4JJavaError

    until = time.monotonic() + _PROPAGATION
    while True:
        try:
            described = admin.describeTopics(jvm.java.util.List.of(topic)).allTopicNames().get()
            return int(described.get(topic).partitions().size())
        except Py4JJavaError as error:
            unknown = "UnknownTopicOrPartitionException" in str(error.java_exception.toString())
            if not unknown or time.monotonic() > until:
                raise
        time.sleep(0.1)


def _create(jvm: Any, admin: Any, topic: str, partitions: int | None) -> None:
    from py4j.protocol import Py4JJavaError

    optional = jvm.java.util.Optional
    count = optional.empty() if partitions is None else optional.of(partitions)
    wanted = jvm.org.apache.kafka.clients.admin.NewTopic(topic, count, optional.empty())
    try:
        admin.createTopics(jvm.java.util.List.of(wanted)).all().get()
    except Py4JJavaError as error:
        if "TopicExistsException" not in str(error.java_exception.toString()):  # Somebody was quicker.
            raise
