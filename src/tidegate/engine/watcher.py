"""Spark's own reports on one query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from tidegate.errors import QueryError, TidegateError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class Watched(Protocol):
    """Whoever runs the query."""

    def runs(self, run_id: object) -> bool:
        """Whether that is its query."""

    def progressed(self, spark_progress: Any) -> None:
        """Spark has committed a batch."""

    def idle(self) -> None:
        """A trigger found nothing to do."""

    def fail(self, failure: TidegateError, cause: Exception) -> None:
        """End the run with this error once its batch is through."""


class Watcher(StreamingQueryListener):
    """Hands on what Spark reports of the query of one runner."""

    def __init__(self, runner: Watched) -> None:
        self._runner = runner

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if self._runner.runs(event.progress.runId):
            try:
                self._runner.progressed(event.progress)
            except Exception as error:
                text = f"the progress of batch {event.progress.batchId} could not be read: {error}"
                self._runner.fail(QueryError(text), error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        if self._runner.runs(event.runId):
            self._runner.idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass
