"""What listeners are told of each committed batch, and what is logged about its event times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from tidegate.batch.outcome import Outcome
from tidegate.batch.time import moment
from tidegate.errors import ListenerError, TidegateError
from tidegate.run.lateness import Lateness
from tidegate.run.opening import Opened
from tidegate.run.progress import BatchProgress, Listener
from tidegate.sources.source import Waiting
from tidegate.spark.listener import Report
from tidegate.storage.place import join

log = logging.getLogger(__name__)


class Reporting:
    """Turns the outcome of a batch, and Spark's report on it, into progress for the listeners."""

    def __init__(
        self,
        opened: Opened,
        listeners: Sequence[Listener],
        *,
        fail: Callable[[TidegateError, Exception], None],
    ) -> None:
        """`fail` ends the run with an error and its cause, when a listener raises."""
        self._opened = opened
        self._listeners = list(listeners)
        self._fail = fail
        self._lateness = Lateness()

    def tell(self, outcome: Outcome, report: Report, waiting: Waiting | None) -> None:
        """Tell every listener of a batch. One that raises is told nothing more."""
        progress = self._progress(outcome, report, waiting)
        log.debug("batch %d: %s", outcome.batch_id, progress)
        self._warn_of_times(outcome, progress)
        for listener in list(self._listeners):
            try:
                listener(progress)
            except Exception as error:
                self._listeners.remove(listener)
                name = getattr(listener, "__qualname__", type(listener).__name__)
                problem = f"{type(error).__name__}: {error}"
                text = f"the listener {name} failed after batch {progress.batch_id} was committed: {problem}"
                self._fail(ListenerError(text), error)

    def _progress(self, outcome: Outcome, report: Report, waiting: Waiting | None) -> BatchProgress:
        opened, nodes, kept = self._opened, self._opened.nodes, outcome.kept
        intake, batch_seconds = opened.intake, report.seconds["triggerExecution"]
        rows_in = sum(outcome.rows_in.values())
        return BatchProgress(
            pipeline=opened.plan.name,
            batch_id=outcome.batch_id,
            finished_at=datetime.fromtimestamp(outcome.visible_at, UTC),
            cut={name: {"start": cut.start, "end": cut.end} for name, cut in outcome.cut.items()},
            rows_in=rows_in,
            rows_out=sum(outcome.rows_out.values()),
            dead_letters=outcome.dead_letters,
            input_rate=intake.arrived_per_second(rows_in, report.begun.timestamp()),
            rows_per_second=rows_in / batch_seconds if batch_seconds > 0 else 0.0,
            batch_seconds=batch_seconds,
            interval_seconds=opened.interval,
            phases={
                "offsets": report.seconds.get("latestOffset", 0.0),
                "planning": report.seconds.get("queryPlanning", 0.0),
                "wal": report.seconds.get("walCommit", 0.0),
                **outcome.phases,
                "commit": report.seconds.get("commitOffsets", 0.0),
            },
            lag=intake.lag,
            limit=intake.limit,
            catching_up=intake.catching_up,
            latency_p50=outcome.latency_p50,
            latency_p99=outcome.latency_p99,
            watermark=moment(outcome.watermark),
            parallelism=opened.route.parallelism,
            tries=outcome.tries,
            sinks=outcome.rows_out,
            late=kept.late if kept else 0,
            state_rows=kept.rows if kept else 0,
            state_bytes=kept.bytes if kept else 0,
            state_wire=kept.wire if kept else 0,
            state_wire_remote=kept.wire_remote if kept else 0,
            state_nodes=len(nodes.route.nodes) if nodes else 0,
            state_local=outcome.arrived.local,
            state_remote=outcome.arrived.remote,
            waiting_files=waiting.files if waiting else None,
            waiting_bytes=waiting.bytes if waiting else None,
            rescale=opened.rescaler.phase,
            ahead=sum(outcome.ahead.values()),
            idle=outcome.idle,
            silent=outcome.silent,
        )

    def _warn_of_times(self, outcome: Outcome, progress: BatchProgress) -> None:
        for source, rows in outcome.ahead.items():
            log.warning(
                "batch %d: %s has rows with an event time that is more than %s ahead: %d, which are in %s",
                outcome.batch_id,
                source,
                self._opened.config.engine.ahead,
                rows,
                join(self._opened.dead_letters, source),
            )
        if self._lateness.is_alarming(progress.rows_in, progress.late):
            log.warning(
                "batch %d: nearly all rows of the last batches were late: the watermark is %s. If a wrong "
                "event time has moved it there, stop the pipeline and set it back with "
                "`tidegate state watermark %s --reset TIME`",
                outcome.batch_id,
                progress.watermark,
                self._opened.checkpoint,
            )
