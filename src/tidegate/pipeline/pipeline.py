"""A pipeline: sources, steps and sinks, declared once and run anywhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.errors import PipelineError
from tidegate.pipeline import drawing
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.step import SourceStep, Step
from tidegate.pipeline.stream import Stream
from tidegate.pipeline.where import caller, refused
from tidegate.sources.source import Source
from tidegate.units import seconds

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.run.progress import Listener
    from tidegate.run.summary import Summary

S = TypeVar("S", bound=Step)

declared: ContextVar[list[Pipeline] | None] = ContextVar("declared", default=None)
"""While a file is being loaded: the pipelines that it declares. `run` then only ends the loading."""


class RunRequested(BaseException):
    """The file that is being loaded asks for its pipeline to be run; whoever loads it will."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline


class Pipeline:
    """Sources, steps and sinks under one name.

    `config` holds settings that belong to this pipeline (`{"engine": {"interval": "2 seconds"}}`);
    the file `tidegate.toml`, the environment and the command line override them.
    """

    def __init__(self, name: str, *, config: Mapping[str, Any] | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise PipelineError(
                f"{name!r} is not a pipeline name: letters, digits, '.', '_' and '-' only", where=caller()
            )
        self.name = name
        self.config: Mapping[str, Any] = dict(config or {})
        self._steps: list[Step] = []
        self._numbers: Counter[str] = Counter()
        pipelines = declared.get()
        if pipelines is not None:
            pipelines.append(self)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is declared so far, in order."""
        return tuple(self._steps)

    def source(self, source: Source) -> Stream:
        """Begin a stream."""
        if not isinstance(source, Source):
            raise refused(f"takes a source such as tg.sources.Sensors(...), not {source!r}", step="source")
        return Stream(self, self._declare(SourceStep, (), source=source))

    def plan(self) -> Plan:
        """The pipeline, checked: raises a PipelineError that names the step and its line."""
        plan = Plan(self.name, self.steps)
        plan.check()
        return plan

    def run(
        self,
        *,
        config: Config | None = None,
        listeners: Sequence[Listener] | None = None,
        duration: str | float | None = None,
        until_done: bool = False,
        take_over: bool = False,
    ) -> Summary:
        """Run until stopped (SIGINT, SIGTERM, SIGHUP), for `duration`, a text or seconds, or `until_done`.

        With `until_done`, the run ends when every source has been read to its end, and closes what is open:
        windows, sessions, joins and timers. Without `config`, settings come from the pipeline,
        `tidegate.toml` and the environment; without `listeners`, the configured view shows each batch.
        Resumes from the checkpoint if there is one. If a driver is already running on it, raises InUseError;
        with `take_over`, replaces that driver.
        """
        if declared.get() is not None:
            raise RunRequested(self)
        from tidegate.run.entry import run

        return run(
            self.plan(),
            self.config,
            config,
            listeners=listeners,
            duration=seconds(duration) if isinstance(duration, str) else duration,
            until_done=until_done,
            take_over=take_over,
        )

    def to_html(self) -> str:
        """The pipeline as a picture (HTML with inline SVG)."""
        return drawing.html(Plan(self.name, self.steps))

    _repr_html_ = to_html

    def _declare(self, kind: type[S], inputs: tuple[Step, ...], name: str | None = None, **fields: Any) -> S:
        self._numbers[kind.kind] += 1
        given = name or f"{kind.kind}-{self._numbers[kind.kind]}"
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            problem = f"{name!r} is not a step name: letters, digits, '_' and '-' only"
            raise refused(problem, step=kind.kind)
        if any(step.name == given for step in self._steps):
            raise refused(f"there is a step {given!r} already; give each one its own name", step=kind.kind)
        step = kind(given, caller(), inputs, **fields)
        self._steps.append(step)
        return step

    def __str__(self) -> str:
        return drawing.tree(Plan(self.name, self.steps))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self._steps)} steps)"
