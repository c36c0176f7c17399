"""A declared pipeline, checked as a whole before any JVM starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tidegate.errors import DurationError, PipelineError
from tidegate.pipeline.keyed_step import KeyedStep
from tidegate.pipeline.step import SinkStep, SourceStep, Step
from tidegate.sources.columns import Columns
from tidegate.units import seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a pipeline in the order of declaration, inputs before their consumers."""

    name: str
    steps: tuple[Step, ...]

    @property
    def sources(self) -> tuple[SourceStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, SourceStep))

    @property
    def sinks(self) -> tuple[SinkStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, SinkStep))

    @property
    def meaning(self) -> dict[str, dict[str, str]]:
        """What the state of each step that keeps some stands for."""
        return {
            step.name: {**step.meaning(), **self._delay(step)}
            for step in self.steps
            if isinstance(step, KeyedStep)
        }

    def _delay(self, step: Step) -> dict[str, str]:
        """State that waits for the watermark says when it is due, which depends on the steps before."""
        waits = step.needs_time or step.waits_until(0) is not None
        return {"delay by joins": f"{self.delay(step) / 1e6:g} s"} if waits else {}

    def consumers(self, step: Step) -> tuple[Step, ...]:
        """The steps that read the output of `step`, one as often as it does."""
        return tuple(other for other in self.steps for above in other.inputs if above is step)

    def upstream(self, step: Step) -> Iterator[Step]:
        """Everything that `step` depends on, nearest first."""
        for above in step.inputs:
            yield above
            yield from self.upstream(above)

    def closing_watermark(self, newest: Mapping[str, int]) -> int | None:
        """The earliest watermark at which everything has been emitted, except timers, that follows from rows
        with event times up to these (source -> microseconds); None if nothing waits for a watermark.

        The earliest, because a later run may bring more rows: the windows that they begin must not be closed.
        """
        latest: dict[Step, int] = {}
        needed = []
        for step in self.steps:
            times = [latest[above] for above in step.inputs if above in latest]
            if step.name in newest:
                times.append(newest[step.name])
            if not times:
                continue
            latest[step] = max(times)
            until = step.waits_until(latest[step])
            if until is not None:
                needed.append(until + 1 + self.delay(step))
                if step.windows is not None:
                    latest[step] = until  # A window happens at its last moment.
        return max(needed, default=None)

    def delay(self, step: Step) -> int:
        """Microseconds by which rows that enter a step may be behind the watermark, because steps before it
        held them back. For this step, the watermark is that much earlier."""
        return max((self.delay(above) + round(above.delay * 1e6) for above in step.inputs), default=0)

    def check(self) -> None:
        """Raise a PipelineError for the first step that cannot run."""
        if not self.sources:
            raise PipelineError(f"pipeline {self.name!r} has no source; start with p.source(...)")
        if not self.sinks:
            last = self.steps[-1]
            raise last.error("has no sink after it, so its rows go nowhere; end the stream with .sink(...)")
        for step in self.steps:
            if not step.may_go_nowhere and not self.consumers(step):
                raise step.error("goes nowhere; end the stream with .sink(...) or remove the step")
            self._check_event_time(step)
            self._check_final_rows(step)
        self._check_columns()
        self._check_grace()
        self._check_one_writer_per_place()
        self._check_no_cycle()

    def _check_event_time(self, step: Step) -> None:
        if not step.needs_time:
            return
        for above in self.upstream(step):
            if isinstance(above, SourceStep) and above.source.event_time is None:
                raise step.error(
                    f"works on event time, but {above.name} ({above.where}) has none; "
                    "name its timestamp column with event_time="
                )

    def _check_final_rows(self, step: Step) -> None:
        if not step.needs_final_rows:
            return
        for above in step.inputs:
            origin = updating(above)
            if origin is not None:
                raise step.error(
                    f"needs final rows, but {origin.name} ({origin.where}) emits a key again "
                    "each time it changes; give it a window, which is emitted once, or use .process(...)"
                )

    def _check_columns(self) -> None:
        """What can be known of columns without Spark; its analyser looks at all the rest."""
        known: dict[Step, Columns | None] = {}
        for step in self.steps:
            given = [known[above] for above in step.inputs]
            problem = step.wrong_column(given)
            if problem is not None:
                raise step.error(problem)
            known[step] = step.columns_after(given)

    def _check_grace(self) -> None:
        for step in self.sources:
            try:
                seconds(step.source.grace)
            except DurationError as error:
                raise step.error(f"grace: {error}") from None

    def _check_one_writer_per_place(self) -> None:
        seen: dict[str, SinkStep] = {}
        for step in self.sinks:
            place = step.sink.location
            if place is None:
                continue
            if place in seen:
                raise step.error(
                    f"writes to {place}, and so does {seen[place].name} ({seen[place].where}); "
                    "give each sink its own place"
                )
            seen[place] = step

    def _check_no_cycle(self) -> None:
        for sink in self.sinks:
            for source in self.sources:
                if _overlap(sink.sink.location, source.source.location):
                    raise sink.error(
                        f"makes a cycle: it writes to {sink.sink.location}, which {source.name} "
                        f"({source.where}) reads; write somewhere else"
                    )


def updating(step: Step) -> Step | None:
    """The step whose updates arrive where `step` hands on; None when all rows are final."""
    if step.emits is not None:
        return step if step.emits == "update" else None
    return next(filter(None, map(updating, step.forwards)), None)


def _overlap(written: str | None, read: str | None) -> bool:
    if written is None or read is None:
        return False
    if written == read:
        return True
    (scheme, _, place), (other, _, folder) = written.partition(":"), read.partition(":")
    if scheme != other or scheme != "files":
        return False
    inner, outer = PurePosixPath(place), PurePosixPath(folder)
    return inner.is_relative_to(outer) or outer.is_relative_to(inner)
