"""Chaos on a running lab: does what the schedule says."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tidegate.errors import TidegateError
from tidegate.lab import schedule
from tidegate.lab.disruption import Disruption
from tidegate.lab.schedule import Action, Event

if TYPE_CHECKING:
    from tidegate.lab.lab import Lab

log = logging.getLogger(__name__)
Undo = Callable[[Sequence[Any]], object]
"""Ends an event, given those of its kind that go on on its host."""


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done."""

    at: float
    """Seconds after the start."""
    what: str

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.what}"


@dataclass(frozen=True, slots=True)
class _Going:
    """What goes on."""

    action: Action
    what: str
    undo: Undo

    @property
    def place(self) -> tuple[type[Event], str]:
        return type(self.action.event), self.action.host

    @property
    def for_good(self) -> bool:
        return isinstance(self.action.event, schedule.Kill) and self.action.event.lasts is None


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
        self._going: dict[tuple[int, int], _Going] = {}
        self._start = 0.0
        self._thread = threading.Thread(target=self._keep, name="chaos", daemon=True)

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        for number, going in reversed(list(self._going.items())):
            if not going.for_good:
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
            self._going[action.number] = _Going(action, what, undo)

    def _undo(self, number: tuple[int, int]) -> None:
        going = self._going.pop(number, None)
        if going is None:
            return
        what = f"over: {going.what}"
        others = [other.action.event for other in self._going.values() if other.place == going.place]
        try:
            going.undo(others)
        except (TidegateError, OSError) as error:
            what = f"not undone: {what}: {error}"
        self._told(what)

    def _told(self, what: str) -> None:
        deed = Deed(time.monotonic() - self._start, what)
        self.deeds.append(deed)
        self._tell(deed)


def begin(lab: Lab, event: Event, name: str) -> tuple[str, Undo | None]:
    """Let it happen to a host or the store: what that was, and how it is undone, if it can be."""
    match event:
        case schedule.StoreSlow(delay=delay):
            return f"{name} takes {delay} per request", _heal(lab.store.slow(delay))
        case schedule.StoreErrors(share=share):
            return f"{name} answers {share:.0%} of requests by 503", _heal(lab.store.errors(share))
        case schedule.StoreAway():
            return f"{name} away", _heal(lab.store.away())
    host = lab[name]
    match event:
        case schedule.Kill(process=None):
            host.kill()
            return f"{name} killed", lambda others: None if others else host.boot()
        case schedule.Kill(process=str(text)):
            count = host.signal(signal.SIGKILL, text)
            return f"{name}: {count} killed with {text!r} in their command line", None
        case schedule.Freeze(process=text):
            count = host.freeze(text or "")
            what = f"{name}: {count} frozen with {text!r} in their command line" if text else f"{name} frozen"
            return what, lambda others: host.thaw(text or "", [other.process or "" for other in others])
        case schedule.Partition(others=others, one_way=way):
            cut = lab.partition(name, others, one_way=way)
            ends = {None: "", "in": ", inbound", "out": ", outbound"}[way]
            return f"{name} cut off from {', '.join(others) if others else 'all'}{ends}", _heal(cut)
        case schedule.Delay(delay=delay):
            back = lab.delay(name, delay)
            return f"{name} delayed by {delay}", lambda _: back()
        case schedule.DiskFull():
            host.fill_disk()
            return f"disk of {name} full", lambda others: None if others else host.empty_disk()
        case schedule.SlowDisk(rate=rate):
            host.slow_disk(rate)
            what = f"disk of {name} at {rate} per second"
            return what, lambda others: host.slow_disk(others[-1].rate if others else None)
        case _:
            raise AssertionError(f"{event} is of no known kind")


def _heal(disruption: Disruption) -> Undo:
    return lambda _: disruption.heal()
