"""How a declared pipeline is run: its settings, its view, then the runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tidegate import config as configuration
from tidegate.config import Config
from tidegate.pipeline.plan import Plan
from tidegate.run import runner
from tidegate.run.progress import Listener
from tidegate.run.summary import Summary
from tidegate.view import view


def run(
    plan: Plan,
    declared: Mapping[str, Any],
    config: Config | None,
    *,
    listeners: Sequence[Listener] | None,
    duration: float | None,
    until_done: bool,
    take_over: bool,
) -> Summary:
    """See `Pipeline.run`; `declared` are the settings that belong to the pipeline."""
    settings = config or configuration.load(code=declared)
    started = partial(
        runner.run, plan, settings, duration=duration, until_done=until_done, take_over=take_over
    )
    if listeners is not None:
        return started(listeners=listeners)
    with view.for_mode(settings.view.mode, settings.view.every) as shown:
        summary = started(listeners=[shown])
    shown.summarise(summary)
    return summary
