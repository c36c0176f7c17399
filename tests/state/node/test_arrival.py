"""Key groups on the way from one node to another: state is what a dictionary says, wherever its rows are."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.state import shard_kit as kit
from tests.state.node.test_backends import (
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
from tests.state.shard_kit import BUFFER, TABLE, Counted, Fetched, Make, keys, rows, values
from tidegate.errors import NodeError, StaleError, StateError
from tidegate.state.log import compaction as merge
from tidegate.state.log import pieces, run
from tidegate.state.log.manifest import StateManifest, together
from tidegate.state.log.pieces import kept
from tidegate.state.node import received
from tidegate.state.node import shard as shards
from tidegate.state.node.backends import keyed, migrating
from tidegate.state.node.rwlock import ReadWriteLock
from tidegate.state.node.shard import Shard
from tidegate.state.table.keys import Groups, group_of, hash_column
from tidegate.state.table.table import NEVER, PROBE, StateTable
from tidegate.storage.local import Local

NAMES = ("a", "b", "c")
routes = st.lists(st.sampled_from(NAMES), min_size=COUNT, max_size=COUNT)
budgets = st.sampled_from([0, 0, 1, 200, 1 << 20])


@pytest.fixture(autouse=True)
def _large_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large is treated otherwise: here that is a few rows."""
    monkeypatch.setattr(received, "LARGE", 200)
    monkeypatch.setattr(pieces, "LARGE", 200)


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

    def fetch_keys(self, table: str, groups: Groups, batch_id: int, keys: pa.Table) -> pa.Table:
        machine = self.machine
        if not machine.serving[self.asker]:  # Else it asks for others.
            machine.takes[self.asker, self.address, batch_id] += 1
        machine.serving[self.address] += 1
        try:
            rows = self.shard.fetch_keys(table, groups, batch_id, keys)
        finally:
            machine.serving[self.address] -= 1
        for key in tuples(keys.drop_columns(["_hash"])):
            self.machine.asked[self.asker, self.address, batch_id, table, repr(key)] += 1
        return rows

    def fetch_due(self, table: str, groups: Groups, batch_id: int, since: int | None, upto: int) -> pa.Table:
        return self.shard.fetch_due(table, groups, batch_id, since, upto)

    def fetch_range(
        self, table: str, groups: Groups, batch_id: int, first: int, size: int
    ) -> tuple[pa.Table, int | None]:
        return self.shard.fetch_range(table, groups, batch_id, first, size)


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
        self.base = StateManifest(-1, COUNT, None, TABLES)
        self.oracle = Oracle()
        self.route = dict.fromkeys(ALL, "a")
        self.committed = self.route
        """The route of the latest batch that was committed."""
        self.takes: Counter[tuple[str, str, int]] = Counter()
        self.serving: Counter[str] = Counter()
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

    def prepare(self, writes: list[Write], watermark: int | None) -> StateManifest:
        runs = []
        for name in NAMES:
            mine = self.groups(name)
            rows = {
                table.name: rows_of(table, [w for w in writes if w.table == table.name and w.group in mine])
                for table in TABLES
            }
            runs.append(self.shard(name).prepare(self.base.batch_id + 1, "1.1", rows, watermark).runs)
        manifest = replace(self.base, batch_id=self.base.batch_id + 1, closed=watermark, runs=together(runs))
        return StateManifest.from_json(manifest.to_json())

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
            self.shard(name).compact()

    @rule()
    def tidy(self) -> None:
        for name in NAMES:
            self.shard(name).tidy()

    @rule()
    def release(self) -> None:
        """Once nothing is under way any more, the old owners may forget."""
        moved = self.committed == self.route
        if moved and not any(self.shard(name).arrived()["groups_left"] for name in NAMES):
            for name in NAMES:
                self.shard(name).release(ALL, 1 << 40)

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
    monkeypatch.setattr(shards, "CHUNK_BYTES", 100)
    monkeypatch.setattr(migrating, "CHUNK_BYTES", 100)
    machine = type("Machine", (Machine,), {"backend": backend, **WAYS[way]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15 if backend == "columnar" else 5,
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
        ),
    )


class Network:
    """Shards that reach each other by name; notes what is asked for, and may lose some of them."""

    def __init__(self, make: Make, **how: Any) -> None:
        self.make = make
        self.how = how
        self.shards: dict[str, Shard] = {}
        self.lost: set[str] = set()
        self.calls: list[tuple[str, str, str, Groups, int]] = []

    def shard(self, name: str) -> Shard:
        if name not in self.shards:
            self.shards[name] = self.make(connect=lambda address: Call(self, name, address), **self.how)
        return self.shards[name]

    def count(self, kind: str) -> int:
        return sum(call[2] == kind for call in self.calls)


class Call:
    """Asks one shard for another one."""

    def __init__(self, network: Network, asker: str, address: str) -> None:
        self.network = network
        self.asker = asker
        self.address = address

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        def call(table: str, groups: Groups, batch_id: int, *more: Any) -> Any:
            size = more[0].num_rows if kind == "fetch_keys" else 0
            self.network.calls.append((self.asker, self.address, kind, groups, size))
            if self.address in self.network.lost:
                raise NodeError("nobody is there", node=self.address)
            return getattr(self.network.shards[self.address], kind)(table, groups, batch_id, *more)

        return call


class Fleet:
    """A driver of all shards of a network."""

    def __init__(self, network: Network, **owners: Groups) -> None:
        self.network = network
        self.owners = owners
        self.base = kit.EMPTY
        self.begin()

    def begin(self, budget: int = 0, **origins: Mapping[str, Groups]) -> None:
        for name, groups in self.owners.items():
            base = self.base.restricted(groups)
            self.network.shard(name).begin(base, groups, origins=origins.get(name, {}), budget=budget)

    def move(self, budget: int = 0, **owners: Groups) -> None:
        """Key groups change hands: each comes from the one who has it now."""
        before, self.owners = self.owners, owners
        ways = {
            name: {old: had & groups for old, had in before.items() if old != name and had & groups}
            for name, groups in owners.items()
        }
        self.begin(budget, **ways)

    def batch(self, writes: Mapping[str, pa.Table], watermark: int | None = None, budget: int = 0) -> None:
        runs, number = [], self.base.batch_id + 1
        for name, groups in self.owners.items():
            mine = {
                table: rows.filter(
                    pa.array(np.isin(group_of(hash_column(rows["_hash"]), kit.COUNT), list(groups)))
                )
                for table, rows in writes.items()
            }
            runs.append(self.network.shard(name).prepare(number, "1", mine, watermark).runs)
        for name in self.owners:
            self.network.shard(name).commit(number, watermark)
        self.base = replace(self.base, batch_id=number, closed=watermark, runs=together(runs))
        self.begin(budget)


LEFT, RIGHT, EVERY, NOTHING = kit.LEFT, kit.RIGHT, kit.ALL, frozenset[int]()
IDS = range(200)


def key_group(key: int) -> int:
    return int(group_of(kit.hashes([key]).to_numpy(), kit.COUNT)[0])


ON_RIGHT = [key for key in IDS if key_group(key) in RIGHT]


@pytest.fixture(params=[True, False], ids=["log", "no log"])
def network(make: Make, request: pytest.FixtureRequest) -> Network:
    return Network(make, durable=request.param)


def half_moved(network: Network, *, budget: int = 0, due: int = NEVER) -> tuple[Fleet, Shard]:
    """The right half of the key groups is with `b` from now on, its rows with `a`."""
    fleet = Fleet(network, a=EVERY, b=NOTHING)
    fleet.batch({"counts": rows(IDS, 1, due=due), "events": rows(IDS, 1, due=due, table=BUFFER)})
    fleet.move(budget, a=LEFT, b=RIGHT)
    return fleet, network.shard("b")


def test_a_key_is_asked_for_once_whether_it_is_there_or_not(network: Network) -> None:
    _, b = half_moved(network)
    missing = [key for key in range(1000, 1100) if key_group(key) in RIGHT]
    for _ in range(3):
        assert values(b.get("counts", keys([*ON_RIGHT, *missing]))) == dict.fromkeys(ON_RIGHT, 1)
    assert network.calls == [("b", "a", "fetch_keys", RIGHT, len(ON_RIGHT) + len(missing))]
    another = next(key for key in range(5000, 6000) if key_group(key) in RIGHT)
    b.get("counts", keys([*missing, another, *ON_RIGHT]))
    assert network.calls[1:] == [("b", "a", "fetch_keys", frozenset({key_group(another)}), 1)]


def test_all_origins_are_asked_at_once_each_for_all_of_its_keys(network: Network) -> None:
    fleet = Fleet(network, a=LEFT, b=RIGHT, c=NOTHING)
    fleet.batch({"counts": rows(IDS, 1)})
    fleet.move(a=NOTHING, b=NOTHING, c=EVERY)
    assert values(network.shard("c").get("counts", keys(IDS))) == dict.fromkeys(IDS, 1)
    taken = sorted((address, kind, groups) for _, address, kind, groups, _ in network.calls)
    assert taken == [("a", "fetch_keys", LEFT), ("b", "fetch_keys", RIGHT)]


def test_what_is_written_before_it_was_got_is_not_undone_by_what_comes(network: Network) -> None:
    fleet, b = half_moved(network)
    changed, gone, *others = ON_RIGHT
    fleet.batch({"counts": pa.concat_tables([rows([changed], 2), rows([gone], gone=True)])}, budget=1 << 20)
    assert values(b.get("counts", keys([changed, gone]))) == {changed: 2}
    assert not network.calls, "a key that was written whole need not be asked for"
    expected = {changed: 2} | dict.fromkeys(others, 1)
    assert values(b.scan("counts", RIGHT)) == expected
    while b.pull():
        pass
    assert values(b.get("counts", keys(ON_RIGHT))) == expected
    assert values(b.scan("counts", RIGHT)) == expected


def test_a_key_is_not_taken_for_another_one_of_the_same_hash(network: Network) -> None:
    """Known is what was got: keys, not hashes."""
    fleet = Fleet(network, a=EVERY, b=NOTHING)
    twins = rows([1, 2], 5)
    same = pa.array([kit.hashes([ON_RIGHT[0]])[0].as_py()] * 2, pa.uint64())
    twins = twins.set_column(0, twins.schema.field(0), same)
    fleet.batch({"counts": twins})
    fleet.move(a=LEFT, b=RIGHT)
    b, probes = network.shard("b"), twins.select(["_hash", "id"])
    assert values(b.get("counts", probes.slice(0, 1))) == {1: 5}
    assert values(b.get("counts", probes.slice(1, 1))) == {2: 5}
    assert values(b.get("counts", probes)) == {1: 5, 2: 5}
    assert network.count("fetch_keys") == 2


def test_windows_that_fall_due_come_by_their_time_unless_they_were_written_since(network: Network) -> None:
    fleet, b = half_moved(network, due=50)
    later, gone, *others = ON_RIGHT
    fleet.batch({"counts": pa.concat_tables([rows([later], 2, due=90), rows([gone], gone=True)])})
    assert b.due("counts", RIGHT, 40).num_rows == 0
    assert values(b.due("counts", RIGHT, 50)) == dict.fromkeys(others, 1)
    assert values(b.due("counts", RIGHT, 95)) == {later: 2} | dict.fromkeys(others, 1)
    assert b.due("events", RIGHT, 50).num_rows == len(ON_RIGHT)
    fleet.batch({}, watermark=50)
    assert b.due("events", RIGHT, 95).num_rows == 0
    assert values(b.due("counts", RIGHT, 95)) == {later: 2}
    assert values(b.get("counts", keys(ON_RIGHT))) == {later: 2}
    assert network.count("fetch_range") == 0


def test_the_background_keeps_within_its_budget_and_begins_where_most_is_asked_for(network: Network) -> None:
    fleet, b = half_moved(network)
    hot = 12
    b.get("counts", keys([key for key in ON_RIGHT if key_group(key) == hot]))
    assert not b.pull(), "without a budget nothing comes unasked"
    fleet.begin(100)
    while b.pull():
        pass
    figures = b.arrived()
    assert 0 < figures["background_bytes"] < 400
    assert next(groups for _, _, kind, groups, _ in network.calls if kind == "fetch_range") == {hot}
    for _ in range(200):
        fleet.begin(100)
        while b.pull():
            pass
    assert b.arrived()["groups_left"] == 0
    asked = len(network.calls)
    assert values(b.get("counts", keys(ON_RIGHT))) == dict.fromkeys(ON_RIGHT, 1)
    assert len(network.calls) == asked


def test_what_has_come_stands_in_for_runs_that_are_far(make: Make, tmp_path: Path) -> None:
    storage = Fetched(tmp_path / "log")
    network = Network(make, storage=storage, memory=1)
    fleet, b = half_moved(network, budget=1 << 20)
    while b.pull():
        pass
    storage.fetched = 0
    for _ in range(2):
        assert values(b.get("counts", keys(ON_RIGHT))) == dict.fromkeys(ON_RIGHT, 1)
        assert b.scan("events", RIGHT).num_rows == len(ON_RIGHT)
        assert storage.fetched == 0
        network.lost.add("a")
    fleet.batch({})
    assert [ref.name for ref in fleet.base.runs] == ["000000000000-n0-1-1.run"], "the log has it already"


def test_runs_at_hand_are_read_once_all_is_here(make: Make, tmp_path: Path) -> None:
    storage = Counted(tmp_path / "log")
    network = Network(make, storage=storage)
    _, b = half_moved(network, budget=1 << 20)
    assert values(b.get("counts", keys(ON_RIGHT))) == dict.fromkeys(ON_RIGHT, 1)
    opens = storage.opens
    assert opens == 1, "of the node that has the rows"
    while b.pull():
        pass
    assert values(b.get("counts", keys(ON_RIGHT))) == dict.fromkeys(ON_RIGHT, 1)
    assert storage.opens == opens + 1


def test_a_node_without_a_log_merges_what_has_come_and_then_needs_nobody(make: Make) -> None:
    network = Network(make, durable=False)
    fleet, b = half_moved(network, budget=1 << 20)
    while b.pull():
        pass
    assert not b.compact(), "the change of owners may still be taken back"
    fleet.batch({"counts": rows(ON_RIGHT[:1], 2)})
    assert b.compact()
    assert not b.compact()
    fleet.batch({})
    assert {ref.name.split("-")[1] for ref in fleet.base.restricted(RIGHT).runs} == {"n1"}
    network.shard("a").release(RIGHT, 1 << 40)
    expected = {ON_RIGHT[0]: 2} | dict.fromkeys(ON_RIGHT[1:], 1)
    assert values(b.scan("counts", RIGHT)) == expected


def test_the_log_stands_in_for_an_origin_that_is_lost(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    network = Network(make)
    fleet, b = half_moved(network)
    b.get("counts", keys(ON_RIGHT[:5]))
    fleet.batch({"counts": rows(ON_RIGHT[:1], 2)})
    network.lost.add("a")
    expected = {ON_RIGHT[0]: 2} | dict.fromkeys(ON_RIGHT[1:], 1)
    assert values(b.get("counts", keys(ON_RIGHT))) == expected
    assert values(b.scan("counts", RIGHT)) == expected
    assert b.arrived()["groups_left"] == 0
    assert len(network.calls) == 2
    assert "8-15 as of batch 0" in caplog.text


def test_without_a_log_it_is_told_what_is_lost_with_an_origin(make: Make) -> None:
    network = Network(make, durable=False)
    _, b = half_moved(network)
    known = ON_RIGHT[:5]
    b.get("counts", keys(known))
    network.lost.add("a")
    reads: list[Callable[[], pa.Table]] = [
        lambda: b.get("counts", keys(ON_RIGHT)),
        lambda: b.due("counts", RIGHT, 5),
        lambda: b.scan("counts", RIGHT),
    ]
    for read in reads:
        with pytest.raises(StateError, match=r"groups 8-15 as of batch 0 .* lost"):
            read()
    assert values(b.get("counts", keys(known))) == dict.fromkeys(known, 1)
    network.lost.clear()
    assert values(b.get("counts", keys(ON_RIGHT))) == dict.fromkeys(ON_RIGHT, 1)


def test_the_background_gives_an_origin_a_second_chance(make: Make) -> None:
    network = Network(make)
    fleet, b = half_moved(network, budget=1 << 20)
    network.lost.add("a")
    for left in (8, 0):
        assert not b.pull()
        assert not b.pull()
        assert b.arrived()["groups_left"] == left
        fleet.begin(1 << 20)
    assert network.count("fetch_range") == 2
    assert values(b.scan("counts", RIGHT)) == dict.fromkeys(ON_RIGHT, 1)


def test_groups_move_on_before_they_have_come_and_back(network: Network) -> None:
    fleet, b = half_moved(network)
    got = ON_RIGHT[::3]
    b.get("counts", keys(got))
    fleet.batch({"counts": rows(ON_RIGHT[:4], 2), "events": rows(ON_RIGHT[:4], 2, table=BUFFER)})
    fleet.move(a=LEFT, b=NOTHING, c=RIGHT)
    expected = dict.fromkeys(ON_RIGHT[:4], 2) | dict.fromkeys(ON_RIGHT[4:], 1)
    c = network.shard("c")
    assert values(c.get("counts", keys(ON_RIGHT[:50]))) == {key: expected[key] for key in ON_RIGHT[:50]}
    fleet.owners["b"] = NOTHING
    fleet.batch({"counts": rows(ON_RIGHT[4:6], 3)})
    expected |= dict.fromkeys(ON_RIGHT[4:6], 3)
    fleet.move(a=EVERY, b=NOTHING, c=NOTHING)
    a = network.shard("a")
    network.calls.clear()
    assert values(a.get("counts", keys(ON_RIGHT))) == expected
    assert [call[:3] for call in network.calls] == [
        ("a", "c", "fetch_keys"),
        ("c", "b", "fetch_keys"),
        ("b", "a", "fetch_keys"),
    ]
    assert a.scan("events", RIGHT).num_rows == len(ON_RIGHT) + 4
    while network.shard("a").arrived()["groups_left"]:
        fleet.begin(1 << 20)
        while a.pull():
            pass
    for name in network.shards:
        network.shards[name].release(EVERY, 1 << 40)
    assert values(a.scan("counts", EVERY)) == dict.fromkeys(IDS, 1) | expected


def test_a_change_of_owners_that_is_taken_back_leaves_all_as_it_was(network: Network) -> None:
    fleet, b = half_moved(network)
    fleet.batch({"counts": rows(ON_RIGHT[:4], 2)})
    expected = dict.fromkeys(ON_RIGHT[:4], 2) | dict.fromkeys(ON_RIGHT[4:], 1)
    b.get("counts", keys(ON_RIGHT[:20]))
    for _ in range(2):
        fleet.move(a=EVERY, b=NOTHING)
        assert values(network.shard("a").get("counts", keys(ON_RIGHT[:50]))).items() <= expected.items()
        fleet.owners = {"a": LEFT, "b": RIGHT}
        fleet.begin()
        assert values(b.scan("counts", RIGHT)) == expected
    assert values(b.get("counts", keys(ON_RIGHT))) == expected
    asked = [size for asker, _, kind, _, size in network.calls if (asker, kind) == ("b", "fetch_keys")]
    assert asked == [16, 30, len(ON_RIGHT) - 50]


def test_only_what_is_kept_is_given(network: Network) -> None:
    _, _ = half_moved(network)
    a = network.shard("a")
    wanted = keys(ON_RIGHT)
    assert a.fetch_keys("counts", RIGHT, 0, wanted).num_rows == len(ON_RIGHT)
    for groups, batch_id in ((RIGHT, 1), (RIGHT, -1)):
        with pytest.raises(StaleError, match="not kept here"):
            a.fetch_keys("counts", groups, batch_id, wanted)
    with pytest.raises(StateError, match="key groups 8-15 are not held"):
        a.fetch_keys("counts", frozenset({1}), 0, wanted)
    a.release(RIGHT, 0)  # Of an earlier move: it was held up on its way.
    assert a.fetch_keys("counts", RIGHT, 0, wanted).num_rows == len(ON_RIGHT)
    a.release(frozenset({8}), 1 << 40)
    with pytest.raises(StaleError, match="not kept here"):
        a.fetch_range("counts", RIGHT, 0, 0, 100)
    assert a.fetch_range("counts", RIGHT - {8}, 0, 0, 1 << 20)[1] is None
    a.release(RIGHT, 1 << 40)
    with pytest.raises(StaleError, match="not kept here"):
        a.fetch_due("counts", RIGHT - {8}, 0, None, 100)


def test_state_of_a_batch_that_did_not_happen_is_not_kept(make: Make) -> None:
    network = Network(make)
    fleet, _ = half_moved(network)
    a = network.shard("a")
    a.begin(kit.EMPTY, LEFT)
    with pytest.raises(StaleError, match="not kept here"):
        a.fetch_keys("counts", RIGHT, 0, keys(ON_RIGHT))
    fleet.begin()
    assert values(a.scan("counts", LEFT)) == dict.fromkeys(set(IDS) - set(ON_RIGHT), 1)


def test_a_begin_elsewhere_ends_what_is_under_way(make: Make) -> None:
    network = Network(make)
    fleet, b = half_moved(network)
    other = network.shard("other")
    other.begin(fleet.base, EVERY)
    runs = other.prepare(1, "1", {"counts": rows(ON_RIGHT, 7)}, None).runs
    b.begin(replace(fleet.base, batch_id=1, runs=runs).restricted(RIGHT), RIGHT)
    assert b.arrived()["groups_left"] == 0
    assert values(b.get("counts", keys(ON_RIGHT))) == dict.fromkeys(ON_RIGHT, 7)
    assert not network.calls


def test_the_figures_tell_what_came_and_how(network: Network) -> None:
    fleet, b = half_moved(network)
    b.get("counts", keys(ON_RIGHT[:10]))
    b.get("counts", keys(ON_RIGHT[:30]))
    figures = b.arrived()
    assert (figures["remote"], figures["local"], figures["demand_keys"]) == (30, 10, 30)
    assert figures["demand_bytes"] > 0
    assert figures["groups_left"] == 8
    fleet.begin(1 << 20)
    while b.pull():
        pass
    figures = b.arrived()
    assert figures["background_keys"] == 2 * len(ON_RIGHT)
    assert (figures["demand_keys"], figures["remote"], figures["groups_left"]) == (0, 0, 0)


@pytest.mark.parametrize("backend", ["columnar", "memory"])
def test_readers_see_whole_state_beside_all_that_comes(
    make: Make, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rows come key by key and in parts, batches are committed and runs are merged."""
    monkeypatch.setattr(merge, "FAN_IN", 2)
    monkeypatch.setattr(shards, "CHUNK_BYTES", 300)
    network = Network(make, durable=False, backend=backend)
    fleet, b = half_moved(network, due=50)
    changing, still = ON_RIGHT[:20], ON_RIGHT[20:]
    over, turns = threading.Event(), ReadWriteLock()

    def reading(seed: int) -> int:
        random, rounds = Random(seed), 0
        while not over.is_set() or rounds < 3:
            some = random.sample(ON_RIGHT, 40)
            with turns.shared():
                found = values(b.get("counts", keys(some)))
                assert found.keys() == set(some)
                assert all(found[key] == 1 for key in some if key in still)
                assert b.get("events", keys(some)).num_rows == len(some)
                assert values(b.due("counts", RIGHT, 60)).keys() == set(ON_RIGHT)
                assert b.scan("events", RIGHT).num_rows == len(ON_RIGHT)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(reading, seed) for seed in range(3)]
        try:
            for number in range(2, 40):
                with turns.exclusive():
                    fleet.batch({"counts": rows(changing, number, due=55)}, budget=1000)
                while b.pull():
                    pass
                b.compact()
        finally:
            over.set()
        assert all(reader.result() >= 3 for reader in readers)
    assert b.arrived()["groups_left"] == 0
    assert not b._now.arriving
    network.shard("a").release(RIGHT, 1 << 40)
    assert values(b.scan("counts", RIGHT)) == dict.fromkeys(still, 1) | dict.fromkeys(changing, 39)


def test_many_keys_asked_for_a_few_at_a_time_lie_in_few_pieces(make: Make) -> None:
    network = Network(make)
    _, b = half_moved(network)
    for start in range(0, len(ON_RIGHT), 3):
        b.get("counts", keys(ON_RIGHT[start : start + 3]))
    transfer = b._now.arriving[0].transfer
    assert len(transfer.received.fetched["counts"]) > 5, "what is large stays as it came while a batch waits"
    b.tidy()
    assert len(transfer.received.fetched["counts"]) <= 5
    assert sum(part.keys.num_rows for part in transfer.received.fetched["counts"]) == len(ON_RIGHT)
    assert values(b.get("counts", keys(ON_RIGHT))) == dict.fromkeys(ON_RIGHT, 1)


def test_a_large_piece_is_in_a_file_without_a_name(tmp_path: Path) -> None:
    table = rows(range(1000), 3).sort_by("_hash")
    (piece,) = kept(TABLE, table, tmp_path)
    assert pa.Table.from_batches([piece.rows]).equals(table)
    assert not list(tmp_path.iterdir())
    assert f"{tmp_path}/arrived-" in Path("/proc/self/maps").read_text()
