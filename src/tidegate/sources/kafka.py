"""A Kafka topic, read by Spark's own connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from tidegate.pipeline.where import refused
from tidegate.sources import kafka_broker
from tidegate.sources._lines import check_event_time, parse, struct
from tidegate.sources.columns import Columns, declared
from tidegate.sources.source import RAW, Position, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Format = Literal["json", "raw"]

CONNECTOR = "tidegate:spark-kafka:4.2.0"
"""Maven coordinates of Spark's connector, as `spark/maven` puts it together."""

_RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
# Set by this class; another value would break what it promises.
_OWN = ("kafka.bootstrap.servers", "subscribe", "startingOffsets", "failOnDataLoss")
_error = partial(refused, step="Kafka")


@dataclass(frozen=True, slots=True)
class Kafka(Source):
    """The messages of `topic`, from the brokers at `bootstrap` ("host:port,host:port").

    `format`: "json" parses each value, one object, by `schema` (Spark's DDL); a missing field is null,
    a surplus one is ignored, and a message that does not fit (including a null value) comes out with RAW and
    REASON. "raw", the default without a schema, gives the columns key and value (binary), topic,
    partition, offset and timestamp.
    `start`: "earliest", "latest", or Spark's JSON of offsets per partition; it applies to the first run,
    later runs resume from the checkpoint. If the broker has dropped messages before they were read,
    the batch fails: they would be missing from the result.
    `options`: further ones of Spark's connector, such as `kafka.security.protocol`. They are never
    shown, because they may contain secrets.
    """

    bootstrap: str
    topic: str
    schema: str | None = None
    format: Format | None = None
    start: str = "earliest"
    event_time: str | None = None
    grace: str = "0 seconds"
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False, repr=False)

    packages: ClassVar[tuple[str, ...]] = (CONNECTOR,)

    def __post_init__(self) -> None:
        if not self.bootstrap or not self.topic:
            raise _error("give the brokers, like 'localhost:9092', and a topic")
        if self.format not in (None, *get_args(Format)):
            raise _error(f"format must be one of {', '.join(get_args(Format))}, not {self.format!r}")
        if self.format == "json" and self.schema is None:
            raise _error("json messages need a schema, like 'id bigint, name string'")
        if not isinstance(self.schema, str | None):
            raise _error(f"the schema is text, like 'id bigint, name string', not {self.schema!r}")
        if self.format == "raw" and self.schema is not None:
            raise _error("a schema is only for json; raw messages always have the same columns")
        if clash := sorted(set(self.options) & set(_OWN)):
            raise _error(f"option {clash[0]} is set by the source itself")
        if self.schema is None and self.event_time not in (None, "timestamp"):
            raise _error(f"event_time of raw messages can only be 'timestamp', not {self.event_time!r}")

    @property
    def fallible(self) -> bool:  # type: ignore[override]
        """Whether `load` adds the columns RAW and REASON: raw messages are taken as they are."""
        return self.schema is not None

    @property
    def known_columns(self) -> Columns | None:
        return dict.fromkeys(_RAW_COLUMNS, "") if self.schema is None else declared(self.schema)

    @property
    def location(self) -> str:
        return f"kafka:{self.bootstrap}/{self.topic}"

    def describe(self) -> str:
        return f"Kafka {self.topic} ({'raw' if self.schema is None else 'json'})"

    def check(self) -> str | None:
        if (found := kafka_broker.problem(self.bootstrap, self.topic, self.options)) is not None:
            raise _error(found)
        return None

    def load(self, spark: SparkSession, *, parallelism: int, first_rows: int | None) -> DataFrame:
        stream = (
            spark.readStream.format("kafka")
            .options(**self.options)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
            .option("startingOffsets", self.start)
            .option("failOnDataLoss", "true")
            # A topic of fewer partitions is read in more pieces; one of more partitions is left as it is.
            .option("minPartitions", str(parallelism))
        )
        if first_rows is not None:
            stream = stream.option("maxOffsetsPerTrigger", str(first_rows))
        messages = stream.load()
        if self.schema is None:
            return messages.select(*_RAW_COLUMNS)
        schema = struct(self.schema, step="Kafka")
        check_event_time(self.event_time, schema, step="Kafka")
        return parse(messages.select(messages["value"].cast("string").alias(RAW)), schema)

    def lag(self, position: Position) -> int | None:
        if position.latest is None or position.end is None:
            return None
        waiting: int = sum(
            max(0, offset - position.end.get(topic, {}).get(partition, 0))
            for topic, partitions in position.latest.items()
            for partition, offset in partitions.items()
        )
        return waiting
