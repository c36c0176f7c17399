"""Reading a topic that a Kafka sink writes, each message once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tidegate.errors import MissingExtraError, SinkError

PIPELINE = "tidegate-pipeline"
BATCH = "tidegate-batch"
SEQUENCE = "tidegate-sequence"

_METADATA_SECONDS = 10.0
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `pipeline`, `batch_id` and `sequence` are all None when no pipeline of ours wrote it."""

    key: bytes | None
    value: bytes | None
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    pipeline: str | None
    batch_id: int | None
    sequence: int | None


class Reader:
    """The messages of `topic` at the brokers `bootstrap`, without the repeats of interrupted batches.

    Iterating waits for new messages for ever; `drain` ends at the end of the topic. Order holds within a
    topic partition. Messages that no pipeline wrote are handed on as they are.

    `positions` (JSON values) says where it stands, after the last message handed out: keep it together
    with what you make of the messages, give it to the next reader, and that one goes on without a repeat
    or a gap. It holds no group: two readers both get everything.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        positions: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            from confluent_kafka import Consumer
        except ImportError:
            raise MissingExtraError("kafka", "reading Kafka") from None
        self._topic = topic
        self._consumer: Any = Consumer(
            {
                "group.id": "tidegate-reader",  # asked for by the client, never used
                **(options or {}),
                "bootstrap.servers": bootstrap,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",  # messages that are gone must not go unnoticed
            }
        )
        try:
            self._positions = self._start(positions or {})
        except BaseException:
            self._consumer.close()
            raise

    @property
    def positions(self) -> dict[str, Any]:
        """Partition -> next offset and, as marks, the latest [batch, sequence] of each pipeline.

        Marks only grow within a topic partition.
        """
        return deepcopy(self._positions)

    def __iter__(self) -> Iterator[Message]:
        while True:
            message = self._next(1.0)
            if message is not None:
                yield message

    def drain(self) -> Iterator[Message]:
        """The messages up to where the topic ends now."""
        ends = {partition: self._bounds(int(partition))[1] for partition in self._positions}
        heard = time.monotonic()
        while any(self._positions[partition]["offset"] < end for partition, end in ends.items()):
            before = sum(at["offset"] for at in self._positions.values())
            message = self._next(0.5)
            if sum(at["offset"] for at in self._positions.values()) > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_SECONDS:
                raise SinkError(f"received nothing from topic {self._topic} for {_SILENCE_SECONDS:.0f} s")
            if message is not None:
                yield message

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, positions: Mapping[str, Any]) -> dict[str, Any]:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            known = self._consumer.list_topics(self._topic, timeout=_METADATA_SECONDS).topics[self._topic]
        except KafkaException as error:
            raise SinkError(f"cannot read topic {self._topic}: {error}") from error
        if known.error is not None:
            raise SinkError(f"cannot read topic {self._topic}: {known.error}")
        start = {
            str(partition): deepcopy(positions.get(str(partition)))
            or {"offset": self._bounds(partition)[0], "marks": {}}
            for partition in sorted(known.partitions)
        }
        self._consumer.assign(
            [TopicPartition(self._topic, int(partition), at["offset"]) for partition, at in start.items()]
        )
        return start

    def _bounds(self, partition: int) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        place = TopicPartition(self._topic, partition)
        low, high = self._consumer.get_watermark_offsets(place, timeout=_METADATA_SECONDS)
        return int(low), int(high)

    def _next(self, timeout: float) -> Message | None:
        """The next message that is not a repeat, or None when none came in time."""
        from confluent_kafka import KafkaError

        found = self._consumer.poll(timeout)
        if found is None:
            return None
        if (error := found.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # Also passes over what only the broker can see, such as the ends of transactions.
                at = self._positions[str(found.partition())]
                at["offset"] = max(at["offset"], found.offset())
                return None
            raise SinkError(f"cannot read topic {self._topic}: {error}")
        message = _decoded(found)
        at = self._positions[str(message.partition)]
        at["offset"] = message.offset + 1
        if message.pipeline is not None:
            mark = [message.batch_id, message.sequence]
            if mark <= at["marks"].get(message.pipeline, [-1, -1]):
                return None
            at["marks"][message.pipeline] = mark
        return message


def read_committed(bootstrap: str, topic: str, *, options: Mapping[str, Any] | None = None) -> list[Message]:
    """All messages that are in `topic` now, each once: by partition order, not across partitions."""
    with Reader(bootstrap, topic, options=options) as reader:
        return list(reader.drain())


def _decoded(found: Any) -> Message:
    headers = {name: value for name, value in found.headers() or () if value is not None}
    ours = all(name in headers for name in (PIPELINE, BATCH, SEQUENCE))
    return Message(
        key=found.key(),
        value=found.value(),
        partition=found.partition(),
        offset=found.offset(),
        timestamp=found.timestamp()[1],
        pipeline=headers[PIPELINE].decode() if ours else None,
        batch_id=int(headers[BATCH]) if ours else None,
        sequence=int(headers[SEQUENCE]) if ours else None,
    )
