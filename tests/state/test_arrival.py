"""Key groups on the way from one node to another: state is what a dictionary says, wherever its rows are."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.state.shard_kit import Fetched
from tests.state.test_backends import (
    ALL,
    COUNT,
    KEYS,
    TABLES,
    Oracle,
    Write,
    batches,
    probes_of,
    rows_of,
    tuples,
)
from tidegate.errors import NodeError
from tidegate.state import arrival, merge, run
from tidegate.state.backends import keyed
from tidegate.state.keys import Groups
from tidegate.state.manifest import Manifest, together
from tidegate.state.shard import Shard
from tidegate.state.storage import Local
from tidegate.state.table import PROBE, StateTable

NAMES = ("a", "b", "c")
routes = st.lists(st.sampled_from(NAMES), min_size=COUNT, max_size=COUNT)
budgets = st.sampled_from([0, 0, 1, 200, 1 << 20])


class Line:
    """The way from one shard to another, which may be dead; notes what is asked for."""

    def __init__(self, machine: Machine, asker: str, address: str) -> None:
        self.machine = machine
        self.asker = asker
        self.address = address

    @property
    def shard(self) -> Shard:
        if self.address not in self.machine.shards:
            raise NodeError("nobody is there", node=self.address)
        return self.machine.shards[self.address]

    def take(self, table: str, groups: Groups, batch_id: int, keys: pa.Table) -> pa.Table:
        self.machine.takes[self.asker, self.address, batch_id] += 1
        rows = self.shard.take(table, groups, batch_id, keys)
        for key in tuples(keys.drop_columns(["_hash"])):
            self.machine.asked[self.asker, self.address, batch_id, table, repr(key)] += 1
        return rows

    def ripe(self, table: str, groups: Groups, batch_id: int, since: int | None, upto: int) -> pa.Table:
        return self.shard.ripe(table, groups, batch_id, since, upto)

    def span(
        self, table: str, groups: Groups, batch_id: int, first: int, size: int
    ) -> tuple[pa.Table, int | None]:
        return self.shard.span(table, groups, batch_id, first, size)


class Machine(RuleBasedStateMachine):
    """A driver that moves key groups between three shards whenever it likes."""

    backend: str
    log: type[Local]
    durable: bool
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-arrival-"))
        self.shards: dict[str, Shard] = {}
        self.addresses = {name: self.start() for name in NAMES}
        self.base = Manifest(-1, COUNT, None, TABLES)
        self.oracle = Oracle()
        self.route = dict.fromkeys(ALL, "a")
        self.committed = self.route
        """The route of the latest batch that was committed."""
        self.takes: Counter[tuple[str, str, int]] = Counter()
        self.asked: Counter[tuple[str, str, int, str, str]] = Counter()
        self.begin()

    def teardown(self) -> None:
        for shard in self.shards.values():
            shard.close()
        shutil.rmtree(self.folder)

    def start(self) -> str:
        address = f"node {next(self.numbers)}"
        self.shards[address] = Shard(
            self.log(self.folder / "log"),
            name=address,
            scratch=self.folder / address,
            backend=self.backend,
            memory=1 << 12 if self.backend == "columnar" else 1 << 24,
            durable=self.durable,
            connect=lambda other: Line(self, address, other),
        )
        return address

    def shard(self, name: str) -> Shard:
        return self.shards[self.addresses[name]]

    def groups(self, name: str) -> Groups:
        return frozenset(group for group, owner in self.route.items() if owner == name)

    def begin(self, budget: int = 0) -> None:
        for name in NAMES:
            mine = self.groups(name)
            origins: dict[str, Groups] = {}
            for group in mine:
                before = self.committed[group]
                if before != name:
                    address = self.addresses[before]
                    origins[address] = origins.get(address, frozenset()) | {group}
            self.shard(name).begin(self.base.restricted(mine), mine, origins=origins, budget=budget)

    def prepare(self, writes: list[Write], watermark: int | None) -> Manifest:
        runs = []
        for name in NAMES:
            mine = self.groups(name)
            rows = {
                table.name: rows_of(table, [w for w in writes if w.table == table.name and w.group in mine])
                for table in TABLES
            }
            runs.append(self.shard(name).prepare(self.base.batch_id + 1, "1.1", rows, watermark).runs)
        manifest = replace(self.base, batch_id=self.base.batch_id + 1, closed=watermark, runs=together(runs))
        return Manifest.from_json(manifest.to_json())

    @rule(writes=batches(), ahead=st.none() | st.integers(0, 8), heard=st.booleans(), budget=budgets)
    def batch(self, writes: list[Write], ahead: int | None, heard: bool, budget: int) -> None:
        """A batch that gets into the ledger; the nodes may hear of it only when the next one begins."""
        self.begin(budget)
        watermark = self.base.closed if ahead is None else (self.base.closed or 0) + ahead
        self.base = self.prepare(writes, watermark)
        self.oracle = self.oracle.after(writes, watermark)
        self.committed = dict(self.route)
        if heard:
            for name in NAMES:
                self.shard(name).commit(self.base.batch_id, watermark)
        else:
            self.begin()

    @rule(writes=batches(), owners=routes, heard=st.booleans(), budget=budgets)
    def batch_and_move(self, writes: list[Write], owners: list[str], heard: bool, budget: int) -> None:
        """The next batch is on another route, and the nodes may not have heard that this one is committed."""
        self.begin()
        self.base = self.prepare(writes, self.base.closed)
        self.oracle = self.oracle.after(writes, self.base.closed)
        self.committed = dict(self.route)
        if heard:
            for name in NAMES:
                self.shard(name).commit(self.base.batch_id, self.base.closed)
        self.move(owners, budget)

    @rule(owners=routes, budget=budgets)
    def move(self, owners: list[str], budget: int) -> None:
        """Another route; whatever was under way, or was tried on another one since the last batch."""
        self.route = dict(enumerate(owners))
        self.begin(budget)

    @rule(writes=batches(), ahead=st.integers(0, 8), budget=budgets)
    def abandoned(self, writes: list[Write], ahead: int, budget: int) -> None:
        """A batch that is prepared and never gets into the ledger."""
        self.prepare(writes, (self.base.closed or 0) + ahead)
        self.begin(budget)

    @rule(name=st.sampled_from(NAMES), steps=st.integers(1, 9))
    def pull(self, name: str, steps: int) -> None:
        for _ in range(steps):
            if not self.shard(name).pull():
                break

    @rule()
    def merge(self) -> None:
        for name in NAMES:
            self.shard(name).merge()

    @rule()
    def release(self) -> None:
        """Once nothing is under way any more, the old owners may forget."""
        moved = self.committed == self.route
        if moved and not any(self.shard(name).arrived()["groups_left"] for name in NAMES):
            for name in NAMES:
                self.shard(name).release(ALL)

    @rule(name=st.sampled_from(NAMES))
    def kill(self, name: str) -> None:
        """A node is lost, and another one takes its place, elsewhere and with the log alone. Those who got
        state from it find nobody there."""
        if self.durable:
            self.shards.pop(self.addresses[name]).close()
            self.addresses[name] = self.start()
            self.begin()

    @rule(data=st.data(), name=st.sampled_from(sorted(KEYS)))
    def get(self, data: st.DataObject, name: str) -> None:
        table = next(table for table in TABLES if table.name == name)
        keys = data.draw(st.lists(st.sampled_from(KEYS[name])))
        for node in NAMES:
            self.takes.clear()
            mine = [key for key in keys if Write(name, key, 0, False, ()).group in self.groups(node)]
            found = self.shard(node).get(name, probes_of(table, mine))
            assert found.schema.equals(table.schema.append(pa.field(PROBE, pa.int64(), False)))
            expected = [
                (*write.row, probe)
                for probe, key in enumerate(mine)
                for write in self.oracle.rows(table)
                if write.key == key
            ]
            assert tuples(found) == expected
            assert all(count == 1 for count in self.takes.values()), "an origin was asked more than once"
        assert all(count == 1 for count in self.asked.values()), "a key was asked for again"

    @rule(upto=st.integers(0, 40), name=st.sampled_from(sorted(KEYS)))
    def due(self, upto: int, name: str) -> None:
        table = next(table for table in TABLES if table.name == name)
        expected = [write.row for write in self.oracle.rows(table) if write.due <= upto]
        self.same(table, expected, lambda shard, groups: shard.due(name, groups, upto))

    @invariant()
    def all_rows(self) -> None:
        for table in TABLES:
            name, expected = table.name, [write.row for write in self.oracle.rows(table)]
            self.same(table, expected, lambda shard, groups, name=name: shard.scan(name, groups))  # type: ignore[misc]

    def same(
        self,
        table: StateTable,
        expected: list[tuple[object, ...]],
        read: Callable[[Shard, Groups], pa.Table],
    ) -> None:
        found = []
        for name in NAMES:
            rows = read(self.shard(name), self.groups(name))
            assert rows.schema.equals(table.schema)
            part = tuples(rows)
            assert [row[0] for row in part] == sorted(row[0] for row in part)
            found += part
        assert sorted(map(repr, found)) == sorted(map(repr, expected))


WAYS: dict[str, Mapping[str, object]] = {
    "folder": {"log": Local, "durable": True},
    "object store": {"log": Fetched, "durable": True},
    "no log": {"log": Local, "durable": False},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["columnar", "memory", "rocksdb"])
def test_state_is_the_same_wherever_its_rows_are(
    backend: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SECTION_ROWS", 2)
    monkeypatch.setattr(merge, "FAN_IN", 2)
    monkeypatch.setattr(keyed, "LOADING", 0.0)
    monkeypatch.setattr(keyed, "PART_ROWS", 1)
    monkeypatch.setattr(arrival, "PART", 100)
    machine = type("Machine", (Machine,), {"backend": backend, **WAYS[way]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30 if backend == "columnar" else 8,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
