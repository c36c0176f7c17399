"""Compaction of runs: what is due, doing it, and which run has taken the place of which others since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from tidegate.state.log.compaction import chosen, merged_rows
from tidegate.state.log.log import Log, Snapshot
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.log.pieces import Sectioned
from tidegate.state.table.keys import Groups

_AT_ONCE = 16 << 20
"""Bytes of runs that are compacted before the next rest."""

T = TypeVar("T")
Rest = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Compaction:
    """Runs, and the one that takes their place; None when nothing is left of them."""

    inputs: tuple[RunRef, ...]
    output: RunRef | None
    closed: int | None
    """Rows due by then were left out."""


class Compactor:
    """Compacts runs of a log."""

    def __init__(self, log: Log, *, memory: int, name: Callable[[int, str], str]) -> None:
        """`name` gives one to the run of a batch and a purpose."""
        self._log = log
        self._budget = min(_AT_ONCE, memory // 8)
        self._name = name

    def compact(self, now: Snapshot, rest: Rest) -> Compaction | None:
        """What is due, done; `rest` is called after each part of it."""
        return self._dropped(now) or self._compacted(now, rest)

    def _dropped(self, now: Snapshot) -> Compaction | None:
        """The oldest runs, when nothing in them counts any more: windows that are over."""
        over = 0
        if now.closed is None:
            return None
        for ref in now.runs:
            if now.replaced(ref) or any(
                part.due_largest > now.closed for part in self._log.run(ref).sections
            ):
                break
            over += 1
        return Compaction(now.runs[:over], None, now.closed) if over else None

    def _compacted(self, now: Snapshot, rest: Rest) -> Compaction | None:
        """The newest runs, as many as is due; none that arrivals are read for, unless no log has them."""
        replaced = [place for place, ref in enumerate(now.runs) if now.replaced(ref)]
        at = now.manifest.batch_id
        settled = not now.open and all(at > arrival.batch_id for arrival in now.arriving)
        if replaced and settled and not self._log.durable:
            return self._output(now, now.runs, now.pairs(), at, rest)
        free = now.runs[replaced[-1] + 1 :] if replaced else now.runs
        number = chosen(free)
        if not number:
            return None
        inputs = free[-number:]
        opened = [(ref, self._log.run(ref)) for ref in inputs]
        return self._output(now, inputs, opened, inputs[-1].sequence, rest)

    def _output(
        self,
        now: Snapshot,
        inputs: tuple[RunRef, ...],
        opened: Sequence[tuple[RunRef, Sectioned]],
        sequence: int,
        rest: Rest,
    ) -> Compaction:
        """A run in place of some, of the rows of those that are opened."""
        content = merged_rows(now, opened, bottom=inputs == now.runs, budget=self._budget)
        first = next(content, None)
        if first is None:
            return Compaction(inputs, None, now.closed)
        output = self._log.write(
            self._name(sequence, "merged"),
            _with_rests(chain([first], content), rest),
            sequence=sequence,
            groups=now.groups,
            count=now.count,
        )
        return Compaction(inputs, output, now.closed)


def _with_rests(parts: Iterable[T], rest: Rest) -> Iterator[T]:
    for part in parts:
        yield part
        rest()


def substituted(
    manifest: StateManifest, groups: Groups, compactions: Iterable[Compaction]
) -> tuple[tuple[RunRef, ...], list[Compaction]]:
    """The runs of a manifest with the compactions that fit it, and which those are."""
    runs, fitting = manifest.runs, []
    for compaction in compactions:
        after = _with(runs, compaction, manifest.closed, groups)
        if after is not None:
            runs = after
            fitting.append(compaction)
    return runs, fitting


def _with(
    runs: tuple[RunRef, ...], compaction: Compaction, closed: int | None, groups: Groups
) -> tuple[RunRef, ...] | None:
    """The runs with a merged one in place of its inputs; None when they are not all there as they were."""
    if compaction.closed is not None and (closed is None or closed < compaction.closed):
        return None
    if compaction.output is not None and compaction.output.groups != groups:
        return None
    number = len(compaction.inputs)
    for start in range(len(runs) - number + 1):
        if runs[start : start + number] == compaction.inputs:
            between = () if compaction.output is None else (compaction.output,)
            return (*runs[:start], *between, *runs[start + number :])
    return None
