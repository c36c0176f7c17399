"""Spark's own reports on one query.

PySpark's listener asks Java for each field of a report, in about a thousand calls per batch that hold up the
next one. This one takes a report as a single text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Self

from tidegate.errors import QueryError, TidegateError
from tidegate.sources.source import Position
from tidegate.spark.callbacks import ensure_callbacks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Report:
    """What Spark says of a batch that it has committed."""

    batch_id: int
    begun: datetime
    seconds: Mapping[str, float]
    """How long each part took, by Spark's names."""
    positions: Sequence[Position]
    """One for each source, in the order in which Spark numbers them."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        return cls(
            batch_id=told["batchId"],
            begun=datetime.fromisoformat(told["timestamp"]),
            seconds={name: millis / 1000 for name, millis in told["durationMs"].items()},
            positions=[
                Position(*(_offset(source.get(f"{name}Offset")) for name in ("start", "end", "latest")))
                for source in told["sources"]
            ],
        )


class Watched(Protocol):
    """Whoever runs the query."""

    def runs(self, run_id: str) -> bool:
        """Whether that is its query."""

    def progressed(self, report: Report) -> None:
        """Spark has committed a batch."""

    def idle(self) -> None:
        """A trigger found nothing to do."""

    def fail(self, failure: TidegateError, cause: Exception) -> None:
        """End the run with this error once its batch is through."""


@contextmanager
def watching(spark: SparkSession, runner: Watched) -> Iterator[None]:
    """Hand on what Spark reports of the query of one runner."""
    jvm: Any = spark._jvm
    ensure_callbacks(spark)
    listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_Listener(runner))
    manager: Any = spark.streams._jsqm
    manager.addListener(listener)
    try:
        yield
    finally:
        manager.removeListener(listener)


def drain_listener_bus(spark: SparkSession) -> None:
    """Wait until every listener of the session has been told of all that has happened."""
    context: Any = spark.sparkContext._jsc
    context.sc().listenerBus().waitUntilEmpty()


class _Listener:
    """Java calls it by Spark's names."""

    def __init__(self, runner: Watched) -> None:
        self._runner = runner

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        told = json.loads(event.progress().json())
        if self._runner.runs(told["runId"]):
            try:
                self._runner.progressed(Report.from_json(told))
            except Exception as error:
                text = f"the progress of batch {told['batchId']} is unreadable: {error}"
                self._runner.fail(QueryError(text), error)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        if self._runner.runs(event.runId().toString()):
            self._runner.idle()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    class Java:
        """What Py4J looks for."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _offset(told: Any) -> Any:
    """Spark tells one that is not there as text, or not at all."""
    return None if isinstance(told, str) else told
