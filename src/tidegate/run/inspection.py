"""The state in a checkpoint, read where it lies. Needs no Spark, and disturbs no pipeline that runs on it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.batch.time import moment
from tidegate.errors import CheckpointError, StateError, TidegateError
from tidegate.ledger import ledger
from tidegate.ledger.records import Entry
from tidegate.run import verification
from tidegate.run.checkpoint import find, find_log, inner_log
from tidegate.run.verification import Problem
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.log.run import Run
from tidegate.state.node.shard import Shard
from tidegate.state.table.keys import group_of, hash_column
from tidegate.state.table.table import DUE, NEVER, StateTable
from tidegate.storage.storage import Storage

_AT_ONCE = 64 << 20
"""Bytes of runs whose key groups are read together."""
_RELOADS = 5
_MOMENT = pa.timestamp("us", tz="UTC")
_LEAST_RETENTION = 2


@dataclass(frozen=True, slots=True)
class Recorded:
    """A committed batch whose state can still be read."""

    batch_id: int
    began: datetime | None
    """When Spark planned it; None when that is not on record."""
    watermark: datetime | None
    manifest: StateManifest

    @property
    def rows(self) -> int:
        """Rows as they lie in the runs, versions that no longer count among them."""
        return sum(run.rows for run in self.manifest.runs)

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.manifest.runs)


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The rows of a table that count, in one key group. Bytes are those of the rows in memory."""

    group: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `Inspection.verify` has looked at, and what it found."""

    batches: int
    runs: int
    bytes: int
    problems: tuple[Problem, ...]


class Inspection:
    """A checkpoint as it is now: the batches whose state is on record, newest first."""

    def __init__(self, checkpoint: str | Path, *, log: str | None = None, lenient: bool = False) -> None:
        """`lenient`: go on without records of the ledger that cannot be read; `problems` names them."""
        self.checkpoint, self.pipeline = find(checkpoint)
        self._log, self._lenient = log, lenient
        self.storage, self.batches, self.problems = self._load()
        if self.problems and not lenient:
            first = self.problems[0]
            raise CheckpointError(f"the ledger's record {first.file} cannot be read: {first.problem}")

    def batch(self, batch_id: int | None = None) -> Recorded:
        """A batch by its id, or the newest one."""
        if not self.batches:
            raise CheckpointError(f"no batch with state has been committed to {self.checkpoint}")
        if batch_id is None:
            return self.batches[0]
        for recorded in self.batches:
            if recorded.batch_id == batch_id:
                return recorded
        last, first = self.batches[0].batch_id, self.batches[-1].batch_id
        raise CheckpointError(
            f"the state of batch {batch_id} is not available in {self.checkpoint}, only that of batches "
            f"{first} to {last}; state.retention says how many are kept"
        )

    @contextmanager
    def opened(self, recorded: Recorded) -> Iterator[Reader]:
        """The state after a batch, to be read inside the block."""
        assert self.storage is not None, "a batch on record has a log"
        with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
            shard = Shard(self.storage, name="inspection", scratch=Path(scratch))
            try:
                shard.begin(recorded.manifest, frozenset(range(recorded.manifest.groups)))
                yield Reader(shard, recorded.manifest)
            finally:
                shard.close()

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verdict:
        """Check every checksum of every run that a batch on record names; and that ledger, `state.json`,
        Spark's own record and the outputs are whole and fit together.

        `progress` is called after each run with the bytes looked at so far and those in all.
        """
        problems = [*self.problems, *verification.problems(self.checkpoint)]
        wanted = {run.name: run for recorded in self.batches for run in recorded.manifest.runs}
        total, done = sum(run.bytes for run in wanted.values()), 0
        for ref in wanted.values():
            assert self.storage is not None
            try:
                check_run(self.storage, ref)
            except TidegateError as error:
                if self._still_names(ref):
                    problems.append(Problem(ref.name, str(error)))
            done += ref.bytes
            if progress is not None:
                progress(done, total)
        return Verdict(len(self.batches), len(wanted), total, tuple(problems))

    def _still_names(self, ref: RunRef) -> bool:
        """A pipeline that runs may have gone on meanwhile, and deleted what it no longer needs."""
        now = Inspection(self.checkpoint.storage.url, log=self._log, lenient=True)
        return any(run.name == ref.name for batch in now.batches for run in batch.manifest.runs)

    def _find_log(self) -> Storage:
        try:
            return find_log(self.checkpoint, self._log)
        except CheckpointError:  # It is `state.json`, and `verify` tells it.
            if not self._lenient:
                raise
            return inner_log(self.checkpoint)

    def _began(self, entry: Entry) -> datetime | None:
        if entry.planned_at is not None:
            return datetime.fromtimestamp(entry.planned_at / 1000, UTC)
        return self.checkpoint.spark.planned_at(entry.batch_id) if self.checkpoint.is_local else None

    def _load(self) -> tuple[Storage | None, tuple[Recorded, ...], tuple[Problem, ...]]:
        before: int | None = None
        for _ in range(_RELOADS):
            entries, damaged = ledger.read(self.checkpoint.ledger)
            problems = tuple(Problem(path, why) for path, why in damaged)
            found = [
                Recorded(entry.batch_id, self._began(entry), moment(entry.watermark), entry.state)
                for entry in entries
                if entry.state is not None
            ]
            if not found:
                if entries and not entries[0].durable and not self._lenient:
                    raise CheckpointError(
                        f"{self.checkpoint} was written with state.durable off, so it holds no state"
                    )
                return None, (), problems
            storage = self._find_log()
            kept, whole = _kept(found, frozenset(storage.names()))
            # While a pipeline runs, its ledger may go on between the two looks.
            if whole or found[0].batch_id == before:
                break
            before = found[0].batch_id
        return storage, tuple(kept), problems


class Reader:
    """The state after one batch."""

    def __init__(self, shard: Shard, manifest: StateManifest) -> None:
        self._shard = shard
        self._manifest = manifest

    def table(self, name: str) -> StateTable:
        """A table by its name. StateError when there is none."""
        for table in self._manifest.tables:
            if table.name == name:
                return table
        known = ", ".join(sorted(table.name for table in self._manifest.tables)) or "none"
        raise StateError(f"this checkpoint has no state table {name!r}; it has: {known}")

    def pieces(self, table: StateTable) -> Iterator[pa.Table]:
        """The rows that count, by hash, a few key groups at a time; columns as `StateTable.schema`.

        The rows of one key are in one piece.
        """
        count = self._manifest.groups
        total = sum(run.bytes for run in self._manifest.runs)
        step = max(1, min(count, count * _AT_ONCE // max(1, total)))
        for low in range(0, count, step):
            rows = self._shard.scan(table.name, frozenset(range(low, min(count, low + step))))
            if rows.num_rows:
                yield rows

    def sizes(self, table: StateTable) -> list[GroupSize]:
        """The key groups that have rows, largest first."""
        found = []
        for rows in self.pieces(table):
            groups = group_of(hash_column(rows["_hash"]), self._manifest.groups)
            numbers, starts = np.unique(groups, return_index=True)
            stops = [*starts[1:].tolist(), len(groups)]
            for group, start, stop in zip(numbers.tolist(), starts.tolist(), stops, strict=True):
                found.append(GroupSize(group, stop - start, rows.slice(start, stop - start).nbytes))
        return sorted(found, key=lambda size: (-size.rows, size.group))


def readable(rows: pa.Table, table: StateTable) -> pa.Table:
    """Rows of state for people and other programs: keys, values and `expires`, an event time or null.

    Keys have the user's names, and event times are timestamps. Where a column of the table has the name
    `expires` already, it is `_expires`.
    """
    due = rows[DUE]
    never = pc.equal(due, NEVER)
    expires = pc.if_else(never, pa.scalar(None, pa.int64()), due).cast(_MOMENT)
    names = list(table.seen_as.values())
    columns = [_with_times(rows[name]) if name in table.times else rows[name] for name in table.seen_as]
    return pa.table([*columns, expires], [*names, "_expires" if "expires" in names else "expires"])


def readable_columns(table: StateTable) -> tuple[pa.Schema, pa.Schema]:
    """The key and value columns of a table as `readable` has them."""
    fields = list(readable(table.schema.empty_table(), table).schema)
    count = len(table.keys)
    return pa.schema(fields[:count]), pa.schema(fields[count:-1])


def _with_times(micros: pa.ChunkedArray) -> pa.ChunkedArray:
    return micros.cast(pa.list_(_MOMENT) if pa.types.is_list(micros.type) else _MOMENT)


def matching(rows: pa.Table, wanted: Mapping[str, pa.Scalar]) -> pa.Table:
    """The rows, readable, whose key columns have these values; a null matches a null, a NaN a NaN."""
    masks = []
    for name, value in wanted.items():
        if not value.is_valid:
            masks.append(pc.is_null(rows[name]))
        elif pa.types.is_floating(value.type) and pc.is_nan(value).as_py():
            masks.append(pc.fill_null(pc.is_nan(rows[name]), False))
        else:
            masks.append(pc.fill_null(pc.equal(rows[name], value), False))
    return rows.filter(reduce(pc.and_, masks)) if masks else rows


def key_value(table: StateTable, name: str, text: str | None) -> pa.Scalar:
    """What a text says as a value of a key column; None for null. Binary is written in hex digits."""
    keys, _ = readable_columns(table)
    place = keys.get_field_index(name)
    if place < 0:
        known = ", ".join(f"{field.name} ({field.type})" for field in keys)
        raise StateError(f"{name!r} is not a key column of {table.name}; it has: {known}")
    kind = keys.field(place).type
    if text is None:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(text)
            if kind.tz is not None and moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return pa.scalar(moment, kind)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pa.scalar(bytes.fromhex(text), kind)
        if pa.types.is_nested(kind):
            return pa.scalar(json.loads(text), kind)
        return pa.scalar(text, pa.string()).cast(kind)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise StateError(
            f"{text!r} is not a value of the key column {name}, which is {kind}: {error}"
        ) from error


def check_run(storage: Storage, ref: RunRef) -> None:
    """Read a run and check all of it. StateError when it is missing, damaged, or not what `ref` says."""
    size = storage.size(ref.name)
    if size != ref.bytes:
        raise StateError(
            f"run {ref.name} has {size:,} bytes, but had {ref.bytes:,} when it was committed; restore it "
            "from a copy, or go back to a savepoint"
        )
    if storage.mapped:
        whole = storage.open(ref.name)
        run = Run(ref.name, size, lambda spans: [whole.slice(*span) for span in spans], keep=False)
    else:
        run = Run(ref.name, size, lambda spans: storage.read(ref.name, spans), keep=False)
    run.verify()
    rows = sum(section.rows for section in run.sections)
    if rows != ref.rows:
        raise StateError(f"run {ref.name} has {rows:,} rows, but had {ref.rows:,} when it was committed")


def _kept(found: Sequence[Recorded], present: frozenset[str]) -> tuple[Sequence[Recorded], bool]:
    """The batches within the retention, newest first; and whether all of their runs are there.

    The ledger remembers some batches for longer than their runs are kept. A batch is out of the retention
    when a run of it is missing and nothing is left that only batches as old as it or older need: files go
    from the oldest batch on. The newest two are always within.
    """
    names = [frozenset(run.name for run in recorded.manifest.runs) for recorded in found]
    newer: frozenset[str] = frozenset()
    whole = True
    for place, mine in enumerate(names):
        if not mine <= present:
            older = frozenset[str]().union(*names[place + 1 :])
            if place >= _LEAST_RETENTION and not (older & present) - newer:
                return found[:place], whole
            whole = False
        newer |= mine
    return found, whole
