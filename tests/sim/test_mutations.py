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

from tidegate.batch import protocol, shell
from tidegate.batch.garbage import Garbage
from tidegate.batch.protocol import BatchProtocol
from tidegate.disk import File
from tidegate.errors import StorageError
from tidegate.ledger.ledger import Ledger
from tidegate.sim import driver as drivers
from tidegate.sim.outcome import simulate
from tidegate.sim.store import Store
from tidegate.spark.checkpoint_copy import CheckpointCopy
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.log import compaction
from tidegate.state.log.compaction import merged_rows
from tidegate.state.log.log import Snapshot
from tidegate.state.node.fence import Fence
from tidegate.state.node.lease import Lease
from tidegate.state.node.received import Received
from tidegate.state.node.staging import Staged, Staging
from tidegate.state.table.table import GONE, StateTable
from tidegate.state.task.hot_keys import HotKeys
from tidegate.state.task.state import TaskState
from tidegate.storage.local import Local

WITHIN = 500
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, 375, 25))
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
    for kind in (Local, Store):
        create = kind.create

        def replacing(self: Any, name: str, content: bytes, create: Any = create) -> bool:
            self.delete(name)
            return create(self, name, content)  # type: ignore[no-any-return]

        patch.setattr(kind, "create", replacing)


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
    patch.setattr(Ledger, "_follows", lambda self: True)


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
    create = Local.create

    def forgetting(self: Local, name: str, content: bytes) -> bool:
        return create(_with_forgetful_disk(self, files=files), name, content)

    patch.setattr(Local, "create", forgetting)


def _forget_syncs_of_runs(patch: Patch, *, files: bool) -> None:
    write = Local.write

    def forgetting(self: Local, name: str, parts: Any) -> None:
        write(_with_forgetful_disk(self, files=files), name, parts)

    patch.setattr(Local, "write", forgetting)


def _with_forgetful_disk(storage: Local, *, files: bool) -> Local:
    return Local(storage.folder, _Forgetful(storage._disk, files=files))  # type: ignore[arg-type]


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
    patch.setattr(drivers, "reconcile", lambda spark, last, sources, check_newest: None)


def what_spark_has_lost_is_planned_anew(patch: Patch) -> None:
    """With another end, though the batch is committed."""
    patch.setattr(CheckpointFiles, "rebuild", lambda self, batch_id, starts, ends, **_: None)
    patch.setattr(shell, "check_cut", lambda batch_id, cut, last, committed: None)


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


def older_drivers_renew_leases(patch: Patch) -> None:
    """One that was replaced keeps the nodes of its successor alive."""
    renewed = Lease.renewed
    patch.setattr(
        Lease,
        "renewed",
        lambda self, generation, now: renewed(self, max(generation, self.generation), now),
    )


def nodes_never_give_up(patch: Patch) -> None:
    patch.setattr(Lease, "left", lambda self, now: None)


def the_driver_stays_with_a_node_that_it_has_replaced(patch: Patch) -> None:
    """Which lives on out of reach, and whose answers count when it is there again."""
    handle = Nodes._handle
    first: dict[tuple[int, int], NodeHandle] = {}
    patch.setattr(Nodes, "_handle", lambda self, node: first.setdefault((id(self), node), handle(self, node)))


def a_record_without_an_answer_counts_as_made(patch: Patch) -> None:
    """Whoever else may have made it, on the other side of a cut."""

    def hoping(self: Ledger, name: str, content: bytes) -> bool:
        try:
            return self._storage.create(name, content)
        except StorageError:
            return True

    patch.setattr(Ledger, "_is_created", hoping)


def what_spark_notes_stays_on_its_host(patch: Patch) -> None:
    patch.setattr(CheckpointCopy, "sync", lambda self, batch_id, starts, ends: None)


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
    (what_spark_has_lost_is_planned_anew, False),
    (dead_nodes_are_not_replaced, False),
    (the_hot_key_cache_is_always_valid, False),
    (writes_since_a_move_are_overlooked, True),
    (groups_count_as_arrived_too_early, True),
    (older_drivers_renew_leases, False),
    (nodes_never_give_up, False),
    (the_driver_stays_with_a_node_that_it_has_replaced, False),
    (a_record_without_an_answer_counts_as_made, False),
    (what_spark_notes_stays_on_its_host, False),
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
