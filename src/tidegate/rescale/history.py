"""The rescales of a pipeline: what was asked, what moved, what it did to the latency. No clock, no files."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from tidegate.batch.outcome import Outcome
from tidegate.rescale.model import Ask, Latency, Moved, Rescale, RescalePhase, Strategy

STRETCH = 20
"""Batches before and after a rescale that its latency is compared with."""
_DURING = 1_000
"""Batches of a rescale that tell its latency, the first ones: it may never settle."""
KEPT = 1_000
"""The latest rescales; older ones are forgotten."""


class _Output(NamedTuple):
    """What is kept of a batch: little, for there are many. Times are in seconds."""

    visible_at: float
    p50: float | None
    p99: float | None


@dataclass(slots=True)
class _Tracked:
    rescale: Rescale
    asked_at: float
    last_output: float | None
    during: list[_Output] = field(default_factory=list)
    after: list[_Output] = field(default_factory=list)
    gap: float = 0.0


class History:
    """Rescales by number, from 1. Every method gives the record as it is after that."""

    def __init__(
        self, past: Iterable[Rescale] = (), keep: Callable[[Rescale], object] = lambda rescale: None
    ) -> None:
        """`past`: those of earlier runs. `keep` is given each one when it was asked for, when it is over, and
        when it is known how the latency was after it."""
        self._past = {rescale.number: rescale for rescale in past}
        self._keep = keep
        self._tracked: dict[int, _Tracked] = {}
        self._outputs: deque[_Output] = deque(maxlen=STRETCH + 1)

    def all(self) -> tuple[Rescale, ...]:
        """Oldest first."""
        return (*self._past.values(), *(tracked.rescale for tracked in list(self._tracked.values())))[-KEPT:]

    def get(self, number: int) -> Rescale:
        return self._tracked[number].rescale

    @property
    def next_number(self) -> int:
        return max((*self._past, *self._tracked), default=0) + 1

    def asked(
        self,
        ask: Ask,
        strategy: Strategy,
        *,
        now: float,
        nodes: tuple[int, int],
        parallelism: tuple[int, int],
        groups: int,
    ) -> Rescale:
        """A rescale that was accepted; it moves so many key groups."""
        number = self.next_number
        known = list(self._outputs)
        gaps = [after.visible_at - before.visible_at for before, after in pairwise(known)]
        record = Rescale(
            number=number,
            ask=ask,
            strategy=strategy,
            phase="starting",
            asked_at=datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            nodes=nodes,
            parallelism=parallelism,
            groups_moved=groups,
            groups_left=groups,
            before=_latency(known[-STRETCH:]),
            steady_gap=statistics.median(gaps) if gaps else None,
        )
        last = known[-1].visible_at if known else None
        self._tracked[number] = _Tracked(record, now, last)
        for old in list(self._tracked)[:-KEPT]:
            del self._tracked[old]
        self._keep(record)
        return record

    def switched(self, number: int, first_batch: int, *, hold: bool) -> Rescale:
        """The next batch runs on the new route."""
        return self._update(number, phase="holding" if hold else "moving", first_batch=first_batch)

    def batch(self, batch: Outcome) -> None:
        """A batch was committed."""
        output = _Output(batch.visible_at, batch.latency_p50, batch.latency_p99)
        self._outputs.append(output)
        for number, tracked in list(self._tracked.items()):
            if not tracked.rescale.over:
                self._during(number, tracked, batch, output)
            elif tracked.rescale.phase == "settled" and len(tracked.after) < STRETCH:
                tracked.after.append(output)
                record = self._update(number, after=_latency(tracked.after))
                if len(tracked.after) == STRETCH:
                    self._keep(record)

    def settled(self, number: int, *, now: float) -> Rescale:
        """All state is where it belongs."""
        return self._over(
            number,
            phase="settled",
            groups_left=0,
            seconds_to_settled=now - self._tracked[number].asked_at,
        )

    def ended(self, number: int, phase: RescalePhase, why: str | None = None) -> Rescale:
        """It failed, or another one took its place."""
        return self._over(number, phase=phase, why=why)

    def _over(self, number: int, **changes: object) -> Rescale:
        record = self._update(number, **changes)
        self._tracked[number].during.clear()  # Their latency is on record.
        self._keep(record)
        return record

    def _during(self, number: int, tracked: _Tracked, batch: Outcome, output: _Output) -> None:
        if tracked.last_output is not None:
            tracked.gap = max(tracked.gap, batch.visible_at - tracked.last_output)
        tracked.last_output = batch.visible_at
        if len(tracked.during) < _DURING:
            tracked.during.append(output)
            self._update(number, during=_latency(tracked.during))
        record = self._update(number, longest_gap=tracked.gap or None)
        if record.first_batch is None or batch.batch_id < record.first_batch:
            return
        first = record.seconds_to_first_batch
        self._update(
            number,
            phase="moving",
            groups_left=batch.arrived.groups_left,
            on_demand=_sum(record.on_demand, batch.arrived.on_demand),
            background=_sum(record.background, batch.arrived.background),
            seconds_to_first_batch=batch.visible_at - tracked.asked_at if first is None else first,
        )

    def _update(self, number: int, **changes: object) -> Rescale:
        tracked = self._tracked[number]
        tracked.rescale = replace(tracked.rescale, **changes)  # type: ignore[arg-type]
        return tracked.rescale


def _latency(outputs: Sequence[_Output]) -> Latency:
    middles = [output.p50 for output in outputs if output.p50 is not None]
    tails = sorted(output.p99 for output in outputs if output.p99 is not None)
    return Latency(
        statistics.median(middles) if middles else None,
        tails[min(len(tails) - 1, int(0.99 * len(tails)))] if tails else None,
    )


def _sum(one: Moved, other: Moved) -> Moved:
    return Moved(one.keys + other.keys, one.bytes + other.bytes)
