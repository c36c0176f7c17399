"""Compaction of runs: what is due, doing it, which run has taken the place of which others since; and what
the rows of several runs come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.state.log.log import Snapshot
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.log.pieces import Sectioned
from tidegate.state.log.run import Section, ordered
from tidegate.state.table.keys import Groups, distinct, group_of, hash_column, position, slices
from tidegate.state.table.table import DUE, GONE, HASH, StateTable, empty

FAN_IN = 4
"""So many runs of like size are merged into one."""
RATIO = 2.0
"""An older run is of like size when it is at most this much larger than all newer ones together."""
MOST_RUNS = 8
"""There are never more than these for long."""
_AT_ONCE = 16 << 20
"""Bytes of runs that are compacted before the next rest."""

Rest = Callable[[], object]


def chosen(runs: Sequence[RunRef]) -> int:
    """How many of the newest runs to merge; 0 for none. `runs` are oldest first.

    Sizes then grow geometrically from new to old: a row is rewritten a number of times that grows with the
    logarithm of the state, and few runs are there to be looked into. Always the newest ones, so that the
    merged run comes after everything older, in whichever key groups that counts. Where there are too many all
    the same, as key groups of several nodes bring along, so many are merged that it is not due again soon.
    """
    forced = len(runs) > MOST_RUNS
    taken = len(runs) - MOST_RUNS * 3 // 4 if forced else min(1, len(runs))
    total = sum(run.bytes for run in runs[len(runs) - taken :])
    for run in reversed(runs[: len(runs) - taken]):
        if run.bytes > RATIO * total:
            break
        taken, total = taken + 1, total + run.bytes
    return taken if forced or taken >= FAN_IN else 0


def merged(table: StateTable, parts: Sequence[pa.Table]) -> pa.Table:
    """The rows of several runs (oldest first, columns as written) as one, sorted by hash.

    In a value table the newest row of a key is left, be it a live one or not; in a buffer table all rows,
    oldest first within a hash.
    """
    filled = [part for part in parts if part.num_rows]
    if not filled:
        return empty(table.written)
    if len(filled) == 1:
        return filled[0]
    if table.kind == "buffer":
        return sorted_by_hash(pa.concat_tables(filled))
    rows = pa.concat_tables(reversed(filled)).combine_chunks()
    first, _ = distinct(hash_column(rows[HASH]), [rows[name] for name in table.keys.names])
    return rows.take(pa.array(first))


def sorted_by_hash(rows: pa.Table) -> pa.Table:
    """Rows in the order of their hashes; rows of a hash stay in the order they came."""
    hashes = hash_column(rows[HASH])
    if ordered(hashes):
        return rows
    # numpy sorts hashes several times quicker when it need not keep the order of equal ones.
    order = np.argsort(hashes)
    if (hashes[order][1:] == hashes[order][:-1]).any():
        order = np.argsort(hashes, kind="stable")
    return rows.combine_chunks().take(pa.array(order))


def live(rows: pa.Table, closed: int | None) -> pa.Table:
    """The rows that count: not gone, and not due by `closed`. Columns as written."""
    if closed is not None:
        due = rows[DUE].to_numpy()
        if rows.num_rows and due.min() <= closed:
            rows = rows.filter(pa.array(due > closed))
    if GONE in rows.column_names and pc.any(rows[GONE]).as_py():
        rows = rows.filter(pc.invert(rows[GONE]))
    return rows


def rows_within(
    ref: RunRef, run: Sectioned, table: StateTable, groups: Groups, span: tuple[int, int] = (0, 2**64)
) -> pa.Table:
    """What a run holds of a table in some key groups and a span of hashes; sorted by hash."""
    part = run.parts[table.name]
    low, high = span
    wanted = [
        index for index, section in enumerate(part.sections) if section.last >= low and section.first < high
    ]
    counted = groups & ref.groups
    pieces = []
    if run.groups <= counted:
        for batch in run.batches(table, wanted):
            cut = _cut(batch, span)
            if cut.num_rows:
                pieces.append(cut)
        return pa.Table.from_batches(pieces, table.written)
    inside = [index for index in wanted if _groups_between(part.sections[index], run.count) & counted]
    for index, batch in zip(inside, run.batches(table, inside), strict=True):
        cut = _cut(batch, span)
        near = counted & _groups_between(part.sections[index], run.count)
        pieces += [cut.slice(*piece) for piece in slices(hash_column(cut.column(HASH)), near, run.count)]
    return pa.Table.from_batches(pieces, table.written)


def merged_rows(
    snapshot: Snapshot,
    opened: Sequence[tuple[RunRef, Sectioned]],
    *,
    bottom: bool,
    budget: int,
    rest: Rest,
) -> Iterator[tuple[StateTable, pa.Table]]:
    """The content of the run that takes the place of several, about `budget` bytes of them at a time, and a
    `rest` after each.

    `bottom`: there is nothing older, so rows that hide an older one of their key are of no use any more.
    """
    for table in snapshot.manifest.tables:
        having = [(ref, run) for ref, run in opened if table.name in run.parts]
        for span in _spans([run for _, run in having], table, budget):
            parts = [rows_within(ref, run, table, ref.groups, span) for ref, run in having]
            rows = merged(table, parts)
            if bottom or table.kind == "buffer":
                rows = live(rows, snapshot.closed)
            if rows.num_rows:
                yield table, rows
                rest()


def reached(
    runs: Sequence[Sectioned], table: StateTable, spans: Sequence[tuple[int, int]], *, rows: int, size: int
) -> int:
    """How far one gets in spans of hashes, one after the other, with about so many rows and bytes; by the
    index alone."""
    left, end = 1.0, 0
    for low, high in spans:
        part = 0.0
        for run in runs:
            for section in run.parts[table.name].sections:
                part += section.share(low, high) * max(section.rows / rows, section.length / size)
        if part > left:
            return low + max(1, int((high - low) * left / part))
        left, end = left - part, high
    return end


def _spans(runs: Sequence[Sectioned], table: StateTable, budget: int) -> list[tuple[int, int]]:
    """The hash space in spans that hold about `budget` bytes each."""
    sections = sorted(
        (section.first, section.length) for run in runs for section in run.parts[table.name].sections
    )
    edges, held = [0], 0
    for first, length in sections:
        if held + length > budget and first > edges[-1]:
            edges.append(first)
            held = 0
        held += length
    return list(zip(edges, [*edges[1:], 2**64], strict=True))


def _cut(batch: pa.RecordBatch, span: tuple[int, int]) -> pa.RecordBatch:
    hashes = hash_column(batch.column(HASH))
    start, stop = (position(hashes, bound) for bound in span)
    return batch.slice(start, max(0, stop - start))


def _groups_between(section: Section, count: int) -> Groups:
    first, last = group_of(np.array([section.first, section.last], np.uint64), count)
    return frozenset(range(int(first), int(last) + 1))


def inside(groups: Groups, count: int) -> NDArray[np.bool_]:
    """For each key group whether it is one of these."""
    held = np.zeros(count, np.bool_)
    held[list(groups)] = True
    return held


@dataclass(frozen=True, slots=True)
class Compaction:
    """Runs, and the one that takes their place; None when nothing is left of them."""

    inputs: tuple[RunRef, ...]
    output: RunRef | None
    closed: int | None
    """Rows due by then were left out."""


def compacted(
    now: Snapshot, rest: Rest, *, memory: int, name: Callable[[int, str], str]
) -> Compaction | None:
    """What is due, done, in parts that take little of `memory`; `rest` is called after each. `name` gives one
    to the run of a batch and a purpose."""
    over = _over(now)
    if over:
        return Compaction(over, None, now.closed)
    inputs, opened, sequence = _due(now)
    if not inputs:
        return None
    budget = min(_AT_ONCE, memory // 8)
    rows = merged_rows(now, opened, bottom=inputs == now.runs, budget=budget, rest=rest)
    output = now.log.rewrite(
        name(sequence, "merged"), rows, sequence=sequence, groups=now.groups, count=now.count
    )
    return Compaction(inputs, output, now.closed)


def _over(now: Snapshot) -> tuple[RunRef, ...]:
    """The oldest runs, when nothing in them counts any more, by their index: windows that are over."""
    closed = now.closed
    if closed is None:
        return ()
    found = takewhile(
        lambda ref: (
            not now.replaced(ref)
            and all(section.due_largest <= closed for section in now.log.run(ref).sections)
        ),
        now.runs,
    )
    return tuple(found)


def _due(now: Snapshot) -> tuple[tuple[RunRef, ...], Sequence[tuple[RunRef, Sectioned]], int]:
    """The newest runs, as many as is due, what to read for them, and their batch; none that arrivals are read
    for, unless no log has them."""
    replaced = [place for place, ref in enumerate(now.runs) if now.replaced(ref)]
    at = now.manifest.batch_id
    settled = not now.open and all(at > arrival.batch_id for arrival in now.arriving)
    if replaced and settled and not now.log.durable:
        return now.runs, now.pairs(), at
    free = now.runs[replaced[-1] + 1 :] if replaced else now.runs
    inputs = free[len(free) - chosen(free) :]
    sequence = inputs[-1].sequence if inputs else at
    return inputs, [(ref, now.log.run(ref)) for ref in inputs], sequence


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
