"""Rescales at set times of a run: what a surge test or an experiment needs."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tidegate.control.controls import Controls
from tidegate.errors import ConfigError, ControlError
from tidegate.rescale.model import STRATEGIES, Ask
from tidegate.run.progress import BatchProgress
from tidegate.units import seconds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduledRescale:
    """A rescale, so many seconds after the first batch."""

    after: float
    ask: Ask


def parse(text: str) -> ScheduledRescale:
    """A rescale as it is written on the command line.

    >>> parse("20 seconds: nodes=4 strategy=lazy").ask.nodes
    4
    """
    when, sign, what = text.partition(":")
    found = dict(re.findall(r"(nodes|parallelism|strategy)=(\w+)", what))
    if not sign or not found or re.sub(r"(nodes|parallelism|strategy)=(\w+)|[\s,]", "", what):
        raise ConfigError(
            f"{text!r} is not a scheduled rescale; write it like '20 seconds: nodes=4' "
            "(nodes, parallelism and strategy can be set)"
        )
    strategy = next((known for known in STRATEGIES if known == found.get("strategy")), None)
    if "strategy" in found and strategy is None:
        raise ConfigError(f"{found['strategy']!r} is not a strategy; choose one of {', '.join(STRATEGIES)}")
    return ScheduledRescale(
        seconds(when),
        Ask(nodes=_number("nodes", found), parallelism=_number("parallelism", found), strategy=strategy),
    )


def _number(name: str, found: Mapping[str, str]) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name} must be a number of at least 1, not {text}")
    return int(text)


class Schedule:
    """Asks for rescales when their time has come. A steering listener: the clock starts with the first
    batch."""

    def __init__(self, rescales: Sequence[ScheduledRescale]) -> None:
        self._rescales = sorted(rescales, key=lambda rescale: rescale.after)
        self._controls: Controls | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def attach(self, controls: Controls) -> None:
        self._controls = controls

    def __call__(self, progress: BatchProgress) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="schedule", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        assert self._controls is not None, "a run attaches its listeners before the first batch"
        start = time.monotonic()
        for rescale in self._rescales:
            if self._over.wait(max(0.0, start + rescale.after - time.monotonic())):
                return
            try:
                self._controls.apply(rescale.ask)
            except ControlError as error:
                log.warning("the rescale at %g s failed: %s", rescale.after, error)
