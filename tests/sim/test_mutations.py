"""Bugs put into the real classes on purpose are found; without them, every promise is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.batch import protocol
from tidegate.batch.garbage import Garbage
from tidegate.batch.protocol import BatchProtocol
from tidegate.disk import Disk, File
from tidegate.ledger import ledger as ledgers
from tidegate.ledger.atomic import create
from tidegate.ledger.ledger import Ledger
from tidegate.sim import driver as drivers
from tidegate.sim.outcome import simulate
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.log import compaction
from tidegate.state.log.compaction import merged_rows
from tidegate.state.log.log import Snapshot
from tidegate.state.log.storage import Local
from tidegate.state.node.fence import Fence
from tidegate.state.node.received import Received
from tidegate.state.node.staging import Staged, Staging
from tidegate.state.table.table import GONE, StateTable
from tidegate.state.task.hot_keys import HotKeys
from tidegate.state.task.state import TaskState

WITHIN = 500
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, 100, 25))
@pytest.mark.parametrize("rescales", [False, True])
def test_all_promises_are_kept_without_mutations(first: int, rescales: bool) -> None:
    for seed in range(first, first + 25):
        outcome = simulate(seed, rescales=rescales)
        assert outcome.problem is None, str(outcome)


def late_writes_are_staged(patch: Patch) -> None:
    """No fence in front of writes: those of an earlier batch count."""
    patch.setattr(Fence, "stage", lambda self, ticket: None)


def every_ticket_is_valid(patch: Patch) -> None:
    patch.setattr(Fence, "_expect", lambda self, ticket, phases, action: None)


def writes_add_up(patch: Patch) -> None:
    """A second write of a task is added to its first one instead of taking its place."""
    put = Staging.put

    def added(self: Staging, table: str, partition: int, staged: Staged) -> None:
        before = self._parts.get((table, partition))
        rows = pa.concat_tables([before.rows, staged.rows]) if before else staged.rows
        put(self, table, partition, replace(staged, rows=rows))

    patch.setattr(Staging, "put", added)


def the_last_record_wins(patch: Patch) -> None:
    """A ledger without an exclusive create."""

    def replacing(path: Path, content: bytes, disk: Disk) -> bool:
        disk.remove(path)
        return create(path, content, disk)

    patch.setattr(ledgers, "create", replacing)


def a_taken_number_is_no_fence(patch: Patch) -> None:
    """A ledger that takes the next number instead."""
    once = Ledger._create

    def insisting(self: Ledger, record: Any) -> bool:
        while not once(self, record):
            self._next += 1
        return True

    patch.setattr(Ledger, "_create", insisting)


def a_forgotten_number_is_free(patch: Patch) -> None:
    """A driver that slept since it read the ledger takes a number that somebody has had."""
    patch.setattr(ledgers, "_oldest", lambda folder, disk: 0)


def tombstones_are_not_staged(patch: Patch) -> None:
    put = TaskState.put

    def without(self: TaskState, table: StateTable, rows: pa.Table) -> None:
        put(self, table, rows.filter(pc.invert(rows[GONE])) if table.kind == "value" else rows)

    patch.setattr(TaskState, "put", without)


def compaction_forgets_tombstones(patch: Patch) -> None:
    """As if there never were older runs."""
    merged = merged_rows
    patch.setattr(
        compaction, "merged_rows", lambda *args, **named: merged(*args, **{**named, "bottom": True})
    )


def compaction_keeps_the_oldest_row(patch: Patch) -> None:
    merged = merged_rows
    patch.setattr(compaction, "merged_rows", lambda now, opened, **named: merged(now, opened[::-1], **named))


def garbage_is_collected_too_early(patch: Patch) -> None:
    """What the batch before the last one needs, though its record stays."""
    init, forget = Garbage.__init__, Ledger.forget
    patch.setattr(Garbage, "__init__", lambda self, ledger, storage, _: init(self, ledger, storage, 1))
    patch.setattr(Ledger, "forget", lambda self, keep: forget(self, keep + 1))


def garbage_is_what_is_not_named_yet(patch: Patch) -> None:
    """Runs of a compaction that the next batch would name."""

    def all_others(self: Garbage, batch_id: int, route: int) -> None:
        assert self._storage is not None
        for name in set(self._storage.names()).difference(*self._named):
            self._delete(name)

    patch.setattr(Garbage, "_sweep", all_others)


def the_ledger_forgets_too_early(patch: Patch) -> None:
    forget = Ledger.forget
    patch.setattr(Ledger, "forget", lambda self, keep: forget(self, 1))


def append_before_all_are_prepared(patch: Patch) -> None:
    patch.setattr(BatchProtocol, "_prepared", lambda self, event: self._append())


def append_without_prepare(patch: Patch) -> None:
    ask = BatchProtocol._ask

    def skipping(self: BatchProtocol, phase: Any, instruction: Any) -> list[protocol.Instruction]:
        return [] if instruction is protocol.Prepare else ask(self, phase, instruction)

    patch.setattr(BatchProtocol, "_ask", skipping)


def publish_before_append(patch: Patch) -> None:
    append = BatchProtocol._append

    def publishing(self: BatchProtocol) -> list[protocol.Instruction]:
        return [protocol.Publish(self.ticket.batch_id), *append(self)]

    patch.setattr(BatchProtocol, "_append", publishing)


class _Forgetful:
    """A disk in the hands of code that leaves out one kind of sync."""

    def __init__(self, disk: Any, *, files: bool) -> None:
        self._disk = disk
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def create(self, path: Path, *, private: bool = False) -> File:
        file: Any = self._disk.create(path, private=private)
        if self._files:
            file.sync = lambda: None
        return file  # type: ignore[no-any-return]

    def sync_folder(self, folder: Path) -> None:
        if self._files:
            self._disk.sync_folder(folder)


def _forget_syncs_of_records(patch: Patch, *, files: bool) -> None:
    def forgetting(path: Path, content: bytes, disk: Any) -> bool:
        return create(path, content, _Forgetful(disk, files=files))  # type: ignore[arg-type]

    patch.setattr(ledgers, "create", forgetting)


def _forget_syncs_of_runs(patch: Patch, *, files: bool) -> None:
    init = Local.__init__

    def forgetting(self: Local, folder: Path, disk: Any) -> None:
        init(self, folder, _Forgetful(disk, files=files))  # type: ignore[arg-type]

    patch.setattr(Local, "__init__", forgetting)


def records_are_not_synced(patch: Patch) -> None:
    _forget_syncs_of_records(patch, files=True)


def names_of_records_are_not_synced(patch: Patch) -> None:
    _forget_syncs_of_records(patch, files=False)


def runs_are_not_synced(patch: Patch) -> None:
    _forget_syncs_of_runs(patch, files=True)


def names_of_runs_are_not_synced(patch: Patch) -> None:
    _forget_syncs_of_runs(patch, files=False)


def what_spark_writes_is_not_synced(patch: Patch) -> None:
    patch.setattr(CheckpointFiles, "sync", lambda self, batch_id, starts, ends: None)


def spark_is_taken_at_its_word(patch: Patch) -> None:
    """Of where the last batch ended, after a power cut, too."""
    patch.setattr(drivers, "reconcile", lambda spark, last, sources: None)


def dead_nodes_are_not_replaced(patch: Patch) -> None:
    patch.setattr(Nodes, "heal", lambda self: 0)


def the_hot_key_cache_is_always_valid(patch: Patch) -> None:
    """Whatever attempt wrote it."""
    recall = HotKeys.recall
    latest: dict[Path, int] = {}
    remember = HotKeys.remember

    def remembering(self: HotKeys, table: StateTable, nonce: int, rows: pa.Table) -> None:
        latest[self._file(table)] = nonce
        remember(self, table, nonce, rows)

    def anything(self: HotKeys, table: StateTable, nonce: int) -> pa.Table | None:
        return recall(self, table, latest.get(self._file(table), nonce))

    patch.setattr(HotKeys, "remember", remembering)
    patch.setattr(HotKeys, "recall", anything)


def writes_since_a_move_are_overlooked(patch: Patch) -> None:
    """A new owner answers with what its origin had."""
    patch.setattr(Snapshot, "since", lambda self, arrival: replace(self, runs=(), arrivals=()))


def groups_count_as_arrived_too_early(patch: Patch) -> None:
    """When their first table is there."""
    loaded = Received.loaded

    def early(self: Received, tables: Any, *args: Any, **named: Any) -> Received:
        return loaded(self, tables[:1], *args, **named)

    patch.setattr(Received, "loaded", early)


CRASHES = ("AttributeError:", "NameError:", "TypeError:")
"""A mutation that does not fit the code any more is not one that was found."""
MUTATIONS: list[tuple[Callable[[Patch], None], bool]] = [
    (late_writes_are_staged, False),
    (every_ticket_is_valid, False),
    (writes_add_up, False),
    (the_last_record_wins, False),
    (a_taken_number_is_no_fence, False),
    (a_forgotten_number_is_free, False),
    (tombstones_are_not_staged, False),
    (compaction_forgets_tombstones, True),
    (compaction_keeps_the_oldest_row, False),
    (garbage_is_collected_too_early, False),
    (garbage_is_what_is_not_named_yet, False),
    (the_ledger_forgets_too_early, False),
    (append_before_all_are_prepared, False),
    (append_without_prepare, False),
    (publish_before_append, False),
    (records_are_not_synced, False),
    (names_of_records_are_not_synced, False),
    (runs_are_not_synced, False),
    (names_of_runs_are_not_synced, False),
    (what_spark_writes_is_not_synced, False),
    (spark_is_taken_at_its_word, False),
    (dead_nodes_are_not_replaced, False),
    (the_hot_key_cache_is_always_valid, False),
    (writes_since_a_move_are_overlooked, True),
    (groups_count_as_arrived_too_early, True),
]


@pytest.mark.parametrize(
    ("mutation", "rescales"), [pytest.param(*each, id=each[0].__name__) for each in MUTATIONS]
)
def test_a_bug_is_found(mutation: Callable[[Patch], None], rescales: bool, monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    for seed in range(WITHIN):
        problem = simulate(seed, rescales=rescales).problem
        if problem is not None:
            assert not problem.startswith(CRASHES), f"the bug crashed the simulation: {problem}"
            sys.stdout.write(f"{mutation.__name__}: found by seed {seed}: {problem[:200]}\n")
            return
    pytest.fail(f"{mutation.__name__} was not found by {WITHIN} seeds")
