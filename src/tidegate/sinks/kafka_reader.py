"""Reading a topic that a Kafka sink writes, each message once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tidegate.errors import MissingExtraError, SinkError

PIPELINE = "tidegate-pipeline"
BATCH = "tidegate-batch"
SEQUENCE = "tidegate-sequence"

_METADATA_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
_REFRESH_SECONDS = 10.0
"""How often a reader that waits looks for partitions that were added to the topic."""
_NOTHING = (-1, -1, -1)
_TAIL = 100
"""Messages at the end of a partition that tell which batch is the latest."""


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
    topic partition. Messages that no pipeline wrote are handed on as they are. Partitions that are added
    to the topic are read from their start.

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
        self._place = f"topic {topic} at {bootstrap}"
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
        self._positions: dict[str, Any] = {}
        self._looked = 0.0
        try:
            self._assign(positions)
        except BaseException:
            self._consumer.close()
            raise

    @property
    def positions(self) -> dict[str, Any]:
        """Partition -> next offset; as marks, the latest [batch, sequence, offset] of each pipeline; and as
        removed, up to which offset messages may be missing.

        Marks only grow within a topic partition.
        """
        return deepcopy(self._positions)

    def __iter__(self) -> Iterator[Message]:
        while True:
            if time.monotonic() - self._looked > _REFRESH_SECONDS:
                self._assign()
            message = self._next(1.0)
            if message is not None:
                yield message

    def drain(self) -> Iterator[Message]:
        """The messages up to where the topic ends now."""
        self._assign()
        ends = {partition: self._bounds(int(partition))[1] for partition in self._positions}
        heard = time.monotonic()
        while any(self._positions[partition]["offset"] < end for partition, end in ends.items()):
            before = sum(at["offset"] for at in self._positions.values())
            message = self._next(0.5)
            if sum(at["offset"] for at in self._positions.values()) > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_SECONDS:
                raise SinkError(f"received nothing from {self._place} for {_SILENCE_SECONDS:.0f} s")
            if message is not None:
                yield message

    def skip_to_last(self, count: int) -> None:
        """Go on with the last so many offsets of each partition, as if nothing had been before."""
        for partition, at in self._positions.items():
            end = self._bounds(int(partition))[1]
            self._positions[partition] = _start_at(max(at["offset"], end - count))
        self._go()

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _assign(self, positions: Mapping[str, Any] | None = None) -> None:
        """Take up the partitions that the topic has got: from `positions`, or else from their start."""
        with self._named_errors():
            known = self._consumer.list_topics(self._topic, timeout=_METADATA_SECONDS).topics[self._topic]
        if known.error is not None:
            raise SinkError(f"cannot read {self._place}: {known.error}")
        self._looked = time.monotonic()
        added = [partition for partition in sorted(known.partitions) if str(partition) not in self._positions]
        if not added:
            return
        for partition in added:
            saved = deepcopy((positions or {}).get(str(partition)))
            self._positions[str(partition)] = saved or _start_at(self._bounds(partition)[0])
        self._go()

    def _go(self) -> None:
        """Read on from the positions."""
        from confluent_kafka import TopicPartition

        self._consumer.assign(
            [
                TopicPartition(self._topic, int(partition), at["offset"])
                for partition, at in self._positions.items()
            ]
        )

    def _bounds(self, partition: int) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        place = TopicPartition(self._topic, partition)
        with self._named_errors():
            low, high = self._consumer.get_watermark_offsets(place, timeout=_METADATA_SECONDS)
        return int(low), int(high)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise SinkError(f"cannot read {self._place}: {error.args[0].str()}") from None

    def _next(self, timeout: float) -> Message | None:
        """The next message that is not a repeat, or None when none came in time."""
        from confluent_kafka import KafkaError

        found = self._consumer.poll(timeout)
        if found is None:
            return None
        if (error := found.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # Also passes over what only the broker can see, such as the ends of transactions.
                _advance(self._positions[str(found.partition())], found.offset())
                return None
            raise SinkError(f"cannot read {self._place}: {error.str()}")
        message = _decoded(found)
        return message if takes(self._positions[str(message.partition)], message) else None


def takes(at: dict[str, Any], message: Message) -> bool:
    """Move the position in a partition past a message. Whether it is to be handed on.

    Of a pipeline's messages only the next one is: what was seen before is a repeat, and one that leaves
    others out comes from an attempt that failed midway, and comes again. Where the broker itself has removed
    messages, by retention or compaction, those left out may never come: then any later one is handed on.
    """
    _advance(at, message.offset)
    at["offset"] = message.offset + 1
    if message.pipeline is None:
        return True
    batch, sequence, offset = at["marks"].get(message.pipeline, _NOTHING)
    assert message.batch_id is not None
    assert message.sequence is not None
    after = (message.batch_id, message.sequence) > (batch, sequence)
    follows = message.sequence == (sequence + 1 if message.batch_id == batch else 0)
    if not after or not (follows or at["removed"] > offset):
        return False
    at["marks"][message.pipeline] = [message.batch_id, message.sequence, message.offset]
    return True


def _start_at(offset: int) -> dict[str, Any]:
    return {"offset": offset, "marks": {}, "removed": offset or -1}


def _advance(at: dict[str, Any], offset: int) -> None:
    if offset > at["offset"]:
        at["offset"] = at["removed"] = offset


def read_committed(bootstrap: str, topic: str, *, options: Mapping[str, Any] | None = None) -> list[Message]:
    """All messages that are in `topic` now, each once: by partition order, not across partitions."""
    with Reader(bootstrap, topic, options=options) as reader:
        return list(reader.drain())


def latest_batch(bootstrap: str, topic: str, pipeline: str) -> int:
    """The latest batch of a pipeline among the newest messages of each partition; -1 for none."""
    with Reader(bootstrap, topic, options={"fetch.wait.max.ms": 10}) as reader:
        reader.skip_to_last(_TAIL)
        for _ in reader.drain():
            pass
        latest: int = max(at["marks"].get(pipeline, _NOTHING)[0] for at in reader.positions.values())
        return latest


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
