"""Reading a topic that a Kafka sink writes, each message once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidegate.errors import MissingExtraError, SinkError

PIPELINE = "tidegate-pipeline"
BATCH = "tidegate-batch"
SEQUENCE = "tidegate-sequence"

Mark: TypeAlias = tuple[int, int]
"""Batch and sequence of a message; they only grow within a topic partition."""

_METADATA_SECONDS = 10.0
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `pipeline`, `batch_id` and `sequence` are None when no pipeline of ours wrote it."""

    key: bytes | None
    value: bytes | None
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    pipeline: str | None
    batch_id: int | None
    sequence: int | None


@dataclass(slots=True)
class _Progress:
    offset: int
    marks: dict[str, Mark] = field(default_factory=dict)

    def advance(self, message: Message) -> bool:
        """Go past the message; False when it repeats one that was seen before."""
        self.offset = message.offset + 1
        if message.pipeline is None or message.batch_id is None or message.sequence is None:
            return True
        mark = (message.batch_id, message.sequence)
        if mark <= self.marks.get(message.pipeline, (-1, -1)):
            return False
        self.marks[message.pipeline] = mark
        return True


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
            self._progress = self._start(positions or {})
        except BaseException:
            self._consumer.close()
            raise

    @property
    def positions(self) -> dict[str, Any]:
        """Partition -> next offset and, per pipeline, the latest (batch, sequence)."""
        return {
            str(partition): {
                "offset": progress.offset,
                "marks": {pipeline: list(mark) for pipeline, mark in progress.marks.items()},
            }
            for partition, progress in self._progress.items()
        }

    def __iter__(self) -> Iterator[Message]:
        while True:
            message = self._next(1.0)
            if message is not None:
                yield message

    def drain(self) -> Iterator[Message]:
        """The messages up to where the topic ends now."""
        ends = {partition: self._bounds(partition)[1] for partition in self._progress}
        heard = time.monotonic()
        while any(self._progress[partition].offset < end for partition, end in ends.items()):
            before = sum(progress.offset for progress in self._progress.values())
            message = self._next(0.5)
            if sum(progress.offset for progress in self._progress.values()) > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_SECONDS:
                raise SinkError(f"received nothing from topic {self._topic} for {_SILENCE_SECONDS:.0f} s")
            if message is not None:
                yield message

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, positions: Mapping[str, Any]) -> dict[int, _Progress]:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            known = self._consumer.list_topics(self._topic, timeout=_METADATA_SECONDS).topics[self._topic]
        except KafkaException as error:
            raise SinkError(f"cannot read topic {self._topic}: {error}") from error
        if known.error is not None:
            raise SinkError(f"cannot read topic {self._topic}: {known.error}")
        progress = {}
        for partition in sorted(known.partitions):
            if saved := positions.get(str(partition)):
                marks = {pipeline: (int(mark[0]), int(mark[1])) for pipeline, mark in saved["marks"].items()}
                progress[partition] = _Progress(int(saved["offset"]), marks)
            else:
                progress[partition] = _Progress(self._bounds(partition)[0])
        self._consumer.assign(
            [TopicPartition(self._topic, partition, at.offset) for partition, at in progress.items()]
        )
        return progress

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
                progress = self._progress[found.partition()]
                progress.offset = max(progress.offset, found.offset())
                return None
            raise SinkError(f"cannot read topic {self._topic}: {error}")
        message = _decoded(found)
        return message if self._progress[message.partition].advance(message) else None


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
