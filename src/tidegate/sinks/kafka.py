"""A Kafka topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tidegate.errors import SinkError
from tidegate.pipeline.where import refused
from tidegate.sinks import json_form
from tidegate.sinks.kafka_reader import (
    BATCH,
    PIPELINE,
    SEQUENCE,
    Message,
    Reader,
    latest_batch,
    read_committed,
)
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter, ahead
from tidegate.sources import kafka_broker
from tidegate.sources.kafka import CONNECTOR
from tidegate.spark.frames import counted
from tidegate.spark.kafka_admin import ensure_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Kafka", "Message", "Reader", "read_committed"]

_PREFIX = "kafka."
_BOOTSTRAP = "bootstrap.servers"
# The low bits of Spark's `monotonically_increasing_id` count the rows of a partition.
_ROW_BITS = (1 << 33) - 1
_ADMIN_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Kafka(Sink):
    """One message per row to `topic` at the brokers `bootstrap` ("host:port,host:port").

    Kafka has no rename: a message is there for all to read when it is written, and a batch that is
    interrupted and tried again writes its messages again. So each one says in its headers which it is:
    `tidegate-pipeline`, `tidegate-batch` and `tidegate-sequence`. A repeated batch has the same messages
    under the same numbers, in the same order per topic partition, so a reader sees each once by taking
    only the one that follows the last (batch, sequence) of its partition; `Reader` does that.

    `key` and `value` are SQL expressions over the row, such as a column's name; without `value` it is the
    row as JSON. Messages of one key are in one partition, in the order of their batches; those whose key is
    null, too. Without `key`, messages are spread by their value, and have no order. A topic that is
    missing is created, with `partitions` or else the broker's default. Partitions may be added at any time:
    they are written to from the second batch after the next start on, and keys may move to them. With a new
    checkpoint, or an older copy of one, take a new topic or rename the pipeline: batches are numbered from
    there again, and readers would take them for repeats. Where it can be seen, the start is refused.

    `options`: further ones of Spark's connector, such as `kafka.security.protocol`. None of them is ever
    shown, as there may be secrets among them.
    """

    bootstrap: str
    topic: str
    key: str | None = None
    value: str | None = None
    partitions: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False, repr=False)

    packages: ClassVar[tuple[str, ...]] = (CONNECTOR,)
    stages: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.bootstrap or not self.topic:
            raise refused("give the brokers, like 'localhost:9092', and a topic", step="Kafka")
        if self.partitions is not None and self.partitions < 1:
            raise refused(f"a topic needs at least 1 partition, not {self.partitions}", step="Kafka")

    def check(self) -> None:
        found = kafka_broker.problem(self.bootstrap, self.topic, self.options, create=True)
        if found is not None:
            raise SinkError(f"{self.describe()}: {found}")

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        client = {
            _BOOTSTRAP: self.bootstrap,
            "default.api.timeout.ms": str(_ADMIN_SECONDS * 1000),
            "request.timeout.ms": str(_ADMIN_SECONDS * 1000 // 2),
            **{k.removeprefix(_PREFIX): text for k, text in self.options.items() if k.startswith(_PREFIX)},
        }
        partitions = ensure_topic(spark, client, self.topic, partitions=self.partitions)
        return _Writer(self, pipeline, partitions)

    def describe(self) -> str:
        return f"Kafka {self.topic}"

    @property
    def location(self) -> str:
        return f"kafka:{self.bootstrap}/{self.topic}"


class _Writer(SinkWriter):
    def __init__(self, sink: Kafka, pipeline: str, partitions: int) -> None:
        """`partitions` are those that the topic has now."""
        self._sink = sink
        self._pipeline = pipeline
        self._partitions = partitions
        self._begun: tuple[int, int] | None = None

    def check(self, rows: DataFrame) -> None:
        _messages(rows, self._sink)  # Spark resolves the expressions at once.

    def recover(self, committed: int, receipt: Receipt | None, *, generation: int) -> None:
        sink = self._sink
        asked = (sink.bootstrap, sink.topic, sink.options)
        # A topic that was just created may not be known everywhere.
        if kafka_broker.is_askable(sink.options) and kafka_broker.problem(*asked) is None:
            latest = latest_batch(sink.bootstrap, sink.topic, self._pipeline)
            if latest > committed + 1:  # That one may have been begun.
                place = f"topic {sink.topic} at {sink.bootstrap}"
                raise ahead(place, latest, committed, anew="use another topic, or rename the pipeline")
        # Messages of the next batch may be there already, in as many partitions as there were then.
        if receipt is not None:
            self._begun = committed + 1, min(receipt["partitions"], self._partitions)

    def partitions_of(self, batch_id: int) -> int:
        """How many a batch is spread over: for every attempt the same, whatever is added to the topic."""
        if self._begun is not None and batch_id <= self._begun[0]:
            return self._begun[1]
        return self._partitions

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        rows, count = counted(rows)
        by = "value" if self._sink.key is None else "key"
        messages = _numbered(_messages(rows, self._sink), by, self.partitions_of(attempt.batch_id))
        (
            messages.select("key", "value", "partition", _headers(self._pipeline, attempt.batch_id))
            .write.format("kafka")
            .options(**self._sink.options)
            .option(_PREFIX + _BOOTSTRAP, self._sink.bootstrap)
            # Messages of a task must arrive in their order, or readers would take one for a repeat.
            .option("kafka.enable.idempotence", "true")
            .option("kafka.acks", "all")
            .option("topic", self._sink.topic)
            .mode("append")
            .save()
        )
        return {"rows": count(), "partitions": self.partitions_of(attempt.batch_id + 1)}

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        pass


def _messages(rows: DataFrame, sink: Kafka) -> DataFrame:
    from pyspark.sql import functions as f

    key = f.lit(None) if sink.key is None else f.expr(sink.key)
    value = f.to_json(f.struct("*"), json_form.VALUES) if sink.value is None else f.expr(sink.value)
    fields = rows.select(key.alias("key"), value.alias("value"))
    kinds = dict(fields.dtypes)
    return fields.select(*(_bytes(f.col(name), kinds[name]).alias(name) for name in ("key", "value")))


def _bytes(column: Column, kind: str) -> Column:
    return column if kind == "binary" else column.cast("string").cast("binary")


def _numbered(messages: DataFrame, by: str, partitions: int) -> DataFrame:
    """Add the topic partition and the place in it: functions of the messages alone, whatever runs them."""
    from pyspark.sql import functions as f

    place = f.pmod(f.xxhash64(by), f.lit(partitions)).cast("int")
    return (
        messages.withColumn("partition", place)
        .repartitionById(partitions, f.col("partition"))
        .sortWithinPartitions("key", "value")
        .withColumn("sequence", f.monotonically_increasing_id().bitwiseAND(f.lit(_ROW_BITS)))
    )


def _headers(pipeline: str, batch_id: int) -> Column:
    from pyspark.sql import functions as f

    parts = {PIPELINE: f.lit(pipeline), BATCH: f.lit(batch_id), SEQUENCE: f.col("sequence")}
    pairs = (
        f.struct(f.lit(name).alias("key"), part.cast("string").cast("binary").alias("value"))
        for name, part in parts.items()
    )
    return f.array(*pairs).alias("headers")
