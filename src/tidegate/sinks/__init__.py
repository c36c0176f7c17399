"""Where rows go."""

from tidegate.sinks.console import Console
from tidegate.sinks.discard import Discard
from tidegate.sinks.files import Files
from tidegate.sinks.foreach_batch import ForEachBatch
from tidegate.sinks.kafka import Kafka
from tidegate.sinks.postgres import Postgres
from tidegate.sinks.sink import Sink

__all__ = ["Console", "Discard", "Files", "ForEachBatch", "Kafka", "Postgres", "Sink"]
