"""Chaos on a running lab: does what the schedule says."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tidegate.errors import TidegateError
from tidegate.lab import schedule
from tidegate.lab.schedule import Action, Event

if TYPE_CHECKING:
    from tidegate.lab.lab import Lab

log = logging.getLogger(__name__)
Undo = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done."""

    at: float
    """Seconds after the start."""
    what: str

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.what}"


class Chaos:
    """Runs a schedule in the background, from `with` to its end.

    Then what is still wrong is put right, but for hosts that were killed for good."""

    def __init__(
        self, lab: Lab, events: Sequence[Event], seed: int, tell: Callable[[Deed], object] | None = None
    ) -> None:
        self.deeds: list[Deed] = []
        self._lab = lab
        self._plan = schedule.actions(events, seed)
        self._tell = tell or (lambda deed: log.info("%s", deed))
        self._over = threading.Event()
        self._open: dict[tuple[int, int], tuple[str, Undo]] = {}
        self._start = 0.0
        self._thread = threading.Thread(target=self._keep, name="chaos", daemon=True)

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        for number in list(self._open):
            self._undo(number)

    def wait(self, seconds: float | None = None) -> bool:
        """Until the last action is done; false if that takes longer, as it does if there is no last one."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _keep(self) -> None:
        for action in self._plan:
            if self._over.wait(max(0.0, self._start + action.at - time.monotonic())):
                return
            if action.undo:
                self._undo(action.number)
            else:
                self._do(action)

    def _do(self, action: Action) -> None:
        try:
            what, undo = begin(self._lab, action.event, action.host)
        except (TidegateError, OSError) as error:
            # A host may be down, or go down just now: that is chaos.
            self._told(f"not done: {action.event.model_dump()['do']} {action.host}: {error}")
            return
        self._told(what)
        if undo is not None:
            self._open[action.number] = (f"over: {what}", undo)

    def _undo(self, number: tuple[int, int]) -> None:
        if number not in self._open:
            return
        what, undo = self._open.pop(number)
        try:
            undo()
        except (TidegateError, OSError) as error:
            what = f"not undone: {what}: {error}"
        self._told(what)

    def _told(self, what: str) -> None:
        deed = Deed(time.monotonic() - self._start, what)
        self.deeds.append(deed)
        self._tell(deed)


def begin(lab: Lab, event: Event, name: str) -> tuple[str, Undo | None]:
    """Let it happen to a host or the store: what that was, and how it is undone."""
    match event:
        case schedule.StoreSlow(delay=delay):
            return f"{name} takes {delay} per request", lab.store.slow(delay).heal
        case schedule.StoreErrors(share=share):
            return f"{name} answers {share:.0%} of requests by 503", lab.store.errors(share).heal
        case schedule.StoreAway():
            return f"{name} away", lab.store.away().heal
    host = lab[name]
    match event:
        case schedule.Kill(process=None):
            host.kill()
            return f"{name} killed", host.boot if event.lasts is not None else None
        case schedule.Kill(process=str(text)):
            count = host.signal(signal.SIGKILL, text)
            return f"{name}: {count} killed with {text!r} in their command line", None
        case schedule.Freeze(process=text):
            host.freeze(text or "")
            return f"{name} frozen{f': {text}' if text else ''}", lambda: host.thaw(text or "")
        case schedule.Partition(others=others, one_way=way):
            cut = lab.partition(name, others, one_way=way)
            ends = {None: "", "in": ", inbound", "out": ", outbound"}[way]
            return f"{name} cut off from {', '.join(others) if others else 'all'}{ends}", cut.heal
        case schedule.Delay(delay=delay):
            return f"{name} delayed by {delay}", lab.delay(name, delay)
        case schedule.DiskFull():
            host.fill_disk()
            return f"disk of {name} full", host.empty_disk
        case schedule.SlowDisk(rate=rate):
            host.slow_disk(rate)
            return f"disk of {name} at {rate} per second", lambda: host.slow_disk(None)
        case _:
            raise AssertionError(f"{event} is of no known kind")
