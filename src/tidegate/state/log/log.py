"""The durable log: the runs of a checkpoint, written once and opened when first used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.errors import StateError
from tidegate.state.log.manifest import RunRef, StateManifest, restricted
from tidegate.state.log.pieces import Sectioned
from tidegate.state.log.run import Run, RunWriter, Section
from tidegate.state.table.keys import Groups, bounds, group_of
from tidegate.state.table.table import StateTable
from tidegate.storage.memory import Memory
from tidegate.storage.storage import Storage

if TYPE_CHECKING:
    from tidegate.state.node.arrival import Arrival


class Log:
    """Runs by name. Reads nothing before it is asked to.

    Runs on a local disk are memory-mapped. Of runs elsewhere just the sections that are needed are fetched,
    and up to `memory` bytes of them kept. Without `durable`, runs that are written stay in memory.
    """

    def __init__(self, storage: Storage, *, memory: int, durable: bool) -> None:
        self.durable = durable
        self.mapped = storage.mapped
        self._storage = storage
        self._written = storage if durable else Memory()
        self._spans = _Spans(memory)
        self._runs: dict[str, Run] = {}
        self._own: set[str] = set()
        self._lock = threading.Lock()

    def write(
        self,
        name: str,
        content: Iterable[tuple[StateTable, pa.Table]],
        *,
        sequence: int,
        groups: Groups,
        count: int,
        read_soon: bool = False,
    ) -> RunRef:
        """Make a run durable. It counts for `groups` of `count`.

        `read_soon`: it is small enough to be in memory whole, so it need not be fetched back.
        """
        writer = RunWriter(content, groups, count)
        if read_soon and not self._written.mapped:
            whole = pa.py_buffer(b"".join(writer))
            self._written.write(name, [whole])
            self._spans.add(name, whole, writer.spans())
        else:
            self._written.write(name, writer)
        with self._lock:
            self._own.add(name)
        return RunRef(name, sequence, groups, writer.rows, writer.bytes)

    def rewrite(
        self,
        name: str,
        content: Iterator[tuple[StateTable, pa.Table]],
        *,
        sequence: int,
        groups: Groups,
        count: int,
    ) -> RunRef | None:
        """As `write`, with what is left of other runs; None, and no run, when nothing is."""
        first = next(content, None)
        if first is None:
            return None
        return self.write(name, chain([first], content), sequence=sequence, groups=groups, count=count)

    def run(self, ref: RunRef) -> Run:
        """A run, opened when it is not open yet."""
        found = self._runs.get(ref.name)
        if found is None:
            found = self._opened(ref)
            with self._lock:
                found = self._runs.setdefault(ref.name, found)
        return found

    def keep(self, names: Iterable[str]) -> None:
        """Close all runs but these; whoever still reads one keeps it alive."""
        kept = set(names)
        with self._lock:
            for name in (self._runs.keys() | self._own) - kept:
                self._runs.pop(name, None)
                self._own.discard(name)
                if isinstance(self._written, Memory):
                    self._written.delete(name)
        self._spans.keep(kept)

    def _opened(self, ref: RunRef) -> Run:
        name = ref.name
        own = name in self._own
        storage = self._written if own else self._storage
        if storage.mapped:
            whole = storage.open(name)
            return Run(
                name, whole.size, lambda spans: [whole.slice(*span) for span in spans], keep=True, trusted=own
            )
        return Run(name, ref.bytes, partial(self._spans.read, storage, name), keep=False)


class _Spans:
    """Parts of remote runs, the ones used last in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._parts: OrderedDict[tuple[str, int, int], pa.Buffer] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, storage: Storage, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        with self._lock:
            found = {span: self._parts[name, *span] for span in spans if (name, *span) in self._parts}
            for span in found:
                self._parts.move_to_end((name, *span))
        missing = [span for span in spans if span not in found]
        if missing:
            fresh = storage.read(name, missing)
            found.update(zip(missing, fresh, strict=True))
            with self._lock:
                for span, part in zip(missing, fresh, strict=True):
                    self._add((name, *span), part)
        return [found[span] for span in spans]

    def add(self, name: str, whole: pa.Buffer, spans: Sequence[tuple[int, int]]) -> None:
        with self._lock:
            for offset, length in spans:
                self._add((name, offset, length), whole.slice(offset, length))

    def keep(self, names: set[str]) -> None:
        with self._lock:
            for key in [key for key in self._parts if key[0] not in names]:
                self._held -= self._parts.pop(key).size

    def _add(self, key: tuple[str, int, int], part: pa.Buffer) -> None:
        if key in self._parts or part.size > self._limit:
            return
        self._parts[key] = part
        self._held += part.size
        while self._held > self._limit:
            _, oldest = self._parts.popitem(last=False)
            self._held -= oldest.size


@dataclass(frozen=True)
class Snapshot:
    """The state of some key groups after a batch, ready to be read. It never changes.

    `runs` are those of the manifest, or merged ones in their place: the same state in fewer files. For key
    groups that come from other nodes, an arrival is read in place of the runs up to its batch.
    """

    log: Log
    manifest: StateManifest
    groups: Groups
    runs: tuple[RunRef, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    tables: dict[str, StateTable] = field(init=False, repr=False)
    arriving: tuple[Arrival, ...] = field(init=False, repr=False)
    """The arrivals as far as there are runs that they are read for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", {table.name: table for table in self.manifest.tables})
        parts = (arrival.restricted(_upto(self.runs, arrival.batch_id)) for arrival in self.arrivals)
        object.__setattr__(self, "arriving", tuple(part for part in parts if part.groups))

    @property
    def count(self) -> int:
        """Number of key groups of the checkpoint."""
        return self.manifest.groups

    @property
    def closed(self) -> int | None:
        """Rows due by then no longer count."""
        return self.manifest.closed

    def table(self, name: str) -> StateTable:
        try:
            return self.tables[name]
        except KeyError:
            known = ", ".join(sorted(self.tables)) or "none"
            raise StateError(f"there is no state table {name!r}; known: {known}") from None

    @property
    def open(self) -> Groups:
        """Groups that are partly with other nodes."""
        return frozenset().union(*(arrival.open for arrival in self.arriving))

    def opened(self, table: StateTable) -> list[tuple[RunRef, Sectioned]]:
        """What holds rows of a table, oldest first; without those of open groups up to their batch."""
        return [(ref, run) for ref, run in self.pairs() if table.name in run.parts]

    def pairs(self) -> list[tuple[RunRef, Sectioned]]:
        """The runs, and what stands in for some, oldest first. A run that is not read is not opened."""
        if not self.arriving:
            return [(ref, self.log.run(ref)) for ref in self.runs]
        seen = [(arrival.batch_id, *arrival.seen()) for arrival in self.arriving]
        found: list[tuple[RunRef, Sectioned]] = [pair for _, _, pair in seen if pair is not None]
        for ref in self.runs:
            away = frozenset().union(*(groups for batch_id, groups, _ in seen if ref.sequence <= batch_id))
            if not ref.groups & away:
                found.append((ref, self.log.run(ref)))
            elif ref.groups - away:
                found.append((replace(ref, groups=ref.groups - away), self.log.run(ref)))
        return found

    def replaced(self, ref: RunRef) -> bool:
        """Whether an arrival is read in place of a run, in some of its groups."""
        return any(ref.sequence <= each.batch_id and ref.groups & each.seen()[0] for each in self.arriving)

    def since(self, arrival: Arrival) -> Snapshot:
        """Just what was written for the groups of an arrival after its batch."""
        newer = (run for run in self.runs if run.sequence > arrival.batch_id)
        return replace(self, runs=restricted(newer, arrival.groups), arrivals=())

    def sizes(self) -> dict[str, Any]:
        """Rows and bytes as they lie in the runs, versions that no longer count among them; in all, by table,
        and as [rows, bytes] by key group, as far as the index tells."""
        # Runs that are with other nodes cannot be looked into.
        whole = replace(self, arrivals=()) if self.log.durable else self
        tables = {name: {"rows": 0, "bytes": 0} for name in self.tables}
        groups = np.zeros((self.count, 2))
        for ref, run in whole.pairs():
            for name, part in run.parts.items():
                figures = tables.setdefault(name, {"rows": 0, "bytes": 0})
                for section in part.sections:
                    figures["rows"] += section.rows
                    figures["bytes"] += section.length
                    _spread(section, ref.groups, groups)
        return {
            "runs": len(self.runs),
            "bytes": sum(ref.bytes for ref in self.runs),
            "tables": tables,
            "groups": {
                str(group): groups[group].round().astype(int).tolist()
                for group in np.flatnonzero(groups[:, 0]).tolist()
            },
        }

    def restricted(self, groups: Groups) -> Snapshot:
        """The same state of fewer groups."""
        arrivals = tuple(arrival.restricted(groups) for arrival in self.arrivals)
        return Snapshot(
            self.log, self.manifest.restricted(groups), groups, restricted(self.runs, groups), arrivals
        )


def _upto(runs: Iterable[RunRef], batch_id: int) -> Groups:
    return frozenset().union(*(run.groups for run in runs if run.sequence <= batch_id))


def _spread(section: Section, counted: Groups, figures: NDArray[np.float64]) -> None:
    """Add a section to the figures of its groups, by their shares of its hashes."""
    count = len(figures)
    low, high = group_of(np.array([section.first, section.last], np.uint64), count).tolist()
    for group in counted.intersection(range(low, high + 1)):
        share = section.share(*bounds(group, count))
        figures[group] += share * section.rows, share * section.length
