"""The rescales of a run as they were: what was asked, what moved, what it did to the latency. No clock."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from tidegate.batch.outcome import Outcome
from tidegate.rescale.model import Ask, Latency, Moved, Rescale, RescalePhase, Strategy

STRETCH = 20
"""Batches before and after a rescale that its latency is compared with."""
_KEPT = 1_000


@dataclass(slots=True)
class _Story:
    rescale: Rescale
    asked_at: float
    last_output: float | None
    during: list[Outcome] = field(default_factory=list)
    after: list[Outcome] = field(default_factory=list)
    gap: float = 0.0


class History:
    """Rescales by number, from 1. Every method gives the record as it is after that."""

    def __init__(self) -> None:
        self._stories: dict[int, _Story] = {}
        self._batches: deque[Outcome] = deque(maxlen=STRETCH + 1)

    def all(self) -> tuple[Rescale, ...]:
        """Oldest first."""
        return tuple(story.rescale for story in list(self._stories.values()))

    def get(self, number: int) -> Rescale:
        return self._stories[number].rescale

    @property
    def next_number(self) -> int:
        return max(self._stories, default=0) + 1

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
        known = list(self._batches)
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
        self._stories[number] = _Story(record, now, last)
        for old in list(self._stories)[:-_KEPT]:
            del self._stories[old]
        return record

    def switched(self, number: int, first_batch: int, *, hold: bool) -> Rescale:
        """The next batch runs on the new route."""
        return self._update(number, phase="holding" if hold else "moving", first_batch=first_batch)

    def batch(self, batch: Outcome) -> None:
        """A batch was committed."""
        self._batches.append(batch)
        for number, story in list(self._stories.items()):
            if not story.rescale.over:
                self._during(number, story, batch)
            elif story.rescale.phase == "settled" and len(story.after) < STRETCH:
                story.after.append(batch)
                self._update(number, after=_latency(story.after))

    def settled(self, number: int, *, now: float) -> Rescale:
        """All state is where it belongs."""
        return self._update(
            number,
            phase="settled",
            groups_left=0,
            seconds_to_settled=now - self._stories[number].asked_at,
        )

    def ended(self, number: int, phase: RescalePhase, why: str | None = None) -> Rescale:
        """It failed, or another one took its place."""
        return self._update(number, phase=phase, why=why)

    def _during(self, number: int, story: _Story, batch: Outcome) -> None:
        if story.last_output is not None:
            story.gap = max(story.gap, batch.visible_at - story.last_output)
        story.last_output = batch.visible_at
        story.during.append(batch)
        record = story.rescale
        self._update(number, during=_latency(story.during), longest_gap=story.gap if story.gap > 0 else None)
        if record.first_batch is None or batch.batch_id < record.first_batch:
            return
        first = record.seconds_to_first_batch
        self._update(
            number,
            phase="moving",
            groups_left=batch.arrived.groups_left,
            on_demand=_sum(record.on_demand, batch.arrived.on_demand),
            background=_sum(record.background, batch.arrived.background),
            seconds_to_first_batch=batch.visible_at - story.asked_at if first is None else first,
        )

    def _update(self, number: int, **changes: object) -> Rescale:
        story = self._stories[number]
        story.rescale = replace(story.rescale, **changes)  # type: ignore[arg-type]
        return story.rescale


def _latency(batches: Sequence[Outcome]) -> Latency:
    middles = [batch.latency_p50 for batch in batches if batch.latency_p50 is not None]
    tails = sorted(batch.latency_p99 for batch in batches if batch.latency_p99 is not None)
    return Latency(
        statistics.median(middles) if middles else None,
        tails[min(len(tails) - 1, int(0.99 * len(tails)))] if tails else None,
    )


def _sum(one: Moved, other: Moved) -> Moved:
    return Moved(one.keys + other.keys, one.bytes + other.bytes)
