"""One behaviour for all backends: a shard is what a plain dictionary says, whatever happens to it."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tidegate.errors import ConfigError, StateError
from tidegate.state.log import compaction as merge
from tidegate.state.log import run
from tidegate.state.log.manifest import StateManifest, together
from tidegate.state.node.backends import NAMES, keyed
from tidegate.state.node.backends.memory import MemoryStore
from tidegate.state.node.backends.redis import RedisStore
from tidegate.state.node.backends.rocksdb import RocksStore
from tidegate.state.node.backends.store import Change, Store
from tidegate.state.node.shard import Prepared, Shard
from tidegate.state.table.keys import Groups, group_of
from tidegate.state.table.rows import encoded
from tidegate.state.table.table import NEVER, PROBE, StateTable
from tidegate.storage.local import Local

COUNT = 4
ALL = frozenset(range(COUNT))

NUMBERS = StateTable(
    "numbers",
    "value",
    pa.schema([("id", pa.int64())]),
    pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))]),
)
NAMED = StateTable(
    "named",
    "value",
    pa.schema([("name", pa.string()), ("part", pa.binary())]),
    pa.schema([("text", pa.string())]),
)
EVENTS = StateTable(
    "events",
    "buffer",
    pa.schema([("ratio", pa.float64())]),
    pa.schema([("v", pa.struct([("a", pa.int32()), ("b", pa.binary())]))]),
)
TABLES = (NUMBERS, NAMED, EVENTS)
KEYS: dict[str, list[tuple[Any, ...]]] = {
    "numbers": [(number,) for number in (None, 0, 1, -1, 2**62)],
    "named": list(itertools.product((None, "", "a", "ä"), (None, b"", b"\0"))),
    "events": [(ratio,) for ratio in (None, 0.0, 0.5, float("inf"))],
}
VALUES: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "numbers": st.tuples(
        st.none() | st.integers(-3, 3),
        st.none() | st.lists(st.none() | st.sampled_from(["x", "yy"]), max_size=2),
    ),
    "named": st.tuples(st.none() | st.text(max_size=3)),
    "events": st.tuples(
        st.none()
        | st.builds(
            lambda a, b: {"a": a, "b": b}, st.none() | st.integers(0, 9), st.none() | st.binary(max_size=2)
        )
    ),
}
DUES = st.integers(0, 30) | st.just(NEVER)


def hash_of(key: tuple[Any, ...]) -> int:
    """Few hashes in each of the four key groups, so that many keys share one."""
    number = zlib.crc32(repr(key).encode())
    return (number % COUNT) << 62 | (number // COUNT) % 2 << 61


@dataclass(frozen=True)
class Write:
    """One row that a batch writes."""

    table: str
    key: tuple[Any, ...]
    due: int
    gone: bool
    values: tuple[Any, ...]

    @property
    def group(self) -> int:
        return int(group_of(np.array([hash_of(self.key)], np.uint64), COUNT)[0])

    @property
    def row(self) -> tuple[Any, ...]:
        return (hash_of(self.key), self.due, *self.key, *self.values)


@st.composite
def batches(draw: st.DrawFn) -> list[Write]:
    """What a batch writes: in value tables each key once."""
    found = []
    for table in TABLES:
        keys = st.lists(st.sampled_from(KEYS[table.name]), max_size=4, unique=table.kind == "value")
        for key in draw(keys):
            gone = table.kind == "value" and draw(st.integers(0, 4)) == 0
            found.append(Write(table.name, key, draw(DUES), gone, draw(VALUES[table.name])))
    return found


def rows_of(table: StateTable, writes: list[Write]) -> pa.Table:
    """Rows as they are handed to `prepare`."""
    valued = table.kind == "value"
    rows = [(*w.row[:2], *((w.gone,) if valued else ()), *w.row[2:]) for w in writes]
    columns = zip(*rows, strict=True) if rows else [()] * len(table.written)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, table.written.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.written)


def probes_of(table: StateTable, keys: list[tuple[Any, ...]]) -> pa.Table:
    """Keys as they are handed to `get`."""
    rows = [(hash_of(key), *key) for key in keys]
    columns = zip(*rows, strict=True) if rows else [()] * len(table.probes)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, table.probes.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.probes)


def tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


@dataclass
class Oracle:
    """State as plain Python has it."""

    closed: int | None = None
    values: dict[tuple[str, tuple[Any, ...]], Write] = field(default_factory=dict)
    buffers: list[Write] = field(default_factory=list)

    def after(self, writes: list[Write], watermark: int | None) -> Oracle:
        values = dict(self.values)
        values.update({(w.table, w.key): w for w in writes if w.table != "events"})
        return Oracle(watermark, values, self.buffers + [w for w in writes if w.table == "events"])

    def rows(self, table: StateTable) -> list[Write]:
        held = self.buffers if table.kind == "buffer" else self.values.values()
        return [
            w
            for w in held
            if w.table == table.name and not w.gone and (self.closed is None or w.due > self.closed)
        ]


class Machine(RuleBasedStateMachine):
    """A driver with one or two shards, on one folder."""

    backend: str
    options: Mapping[str, str]
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-state-"))
        # Redis outlives a shard, and has to tell what it left there from what it needs.
        self.options = {**self.options, "prefix": f"{self.folder.name}"}
        self.base = StateManifest(-1, COUNT, None, TABLES)
        self.oracle = Oracle()
        self.shards: list[tuple[Shard, Groups]] = []
        self.start(ALL)

    def teardown(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def stop(self) -> None:
        for shard, _ in self.shards:
            shard.close()

    def start(self, first: Groups) -> None:
        """New processes: the first has these groups, a second one the others."""
        self.stop()
        self.shards = [(self.shard(), groups) for groups in (first, ALL - first) if groups]
        self.begin()

    def shard(self) -> Shard:
        name = f"node {next(self.numbers)}"
        return Shard(
            Local(self.folder / "log"),
            name=name,
            scratch=self.folder / name,
            backend=self.backend,
            memory=1 << 12 if self.backend == "columnar" else 1 << 24,
            options=self.options,
        )

    def begin(self) -> None:
        for shard, groups in self.shards:
            shard.begin(self.base, groups)

    def prepare(self, writes: list[Write], watermark: int | None) -> StateManifest:
        prepared: list[Prepared] = []
        for shard, groups in self.shards:
            mine = {
                table.name: rows_of(table, [w for w in writes if w.table == table.name and w.group in groups])
                for table in TABLES
            }
            prepared.append(shard.prepare(self.base.batch_id + 1, "1.1", mine, watermark))
            assert prepared[-1].rows == sum(rows.num_rows for rows in mine.values())
        runs = together(answer.runs for answer in prepared)
        manifest = replace(self.base, batch_id=self.base.batch_id + 1, closed=watermark, runs=runs)
        return StateManifest.from_json(manifest.to_json())

    @rule(
        writes=batches(),
        ahead=st.none() | st.integers(0, 8),
        end=st.sampled_from(["commit", "begin", "crash"]),
    )
    def batch(self, writes: list[Write], ahead: int | None, end: str) -> None:
        """A batch that gets into the ledger; the nodes may hear of it late, or die before they do."""
        watermark = self.base.closed if ahead is None else (self.base.closed or 0) + ahead
        self.base = self.prepare(writes, watermark)
        self.oracle = self.oracle.after(writes, watermark)
        if end == "commit":
            for shard, _ in self.shards:
                shard.commit(self.base.batch_id, watermark)
        if end == "crash":
            self.start(self.shards[0][1])
        self.begin()

    @rule(writes=batches(), ahead=st.integers(0, 8), again=st.booleans())
    def abandoned(self, writes: list[Write], ahead: int, again: bool) -> None:
        """A batch that is prepared and never gets there; the next one has the same number."""
        self.prepare(writes, (self.base.closed or 0) + ahead)
        if not again:
            self.begin()

    @rule(groups=st.frozensets(st.sampled_from(sorted(ALL)), min_size=1))
    def restart(self, groups: Groups) -> None:
        self.start(groups)

    @rule(groups=st.frozensets(st.sampled_from(sorted(ALL)), min_size=1, max_size=COUNT - 1))
    def moved(self, groups: Groups) -> None:
        """Key groups change owners while both run."""
        if len(self.shards) == 1:
            self.shards.append((self.shard(), frozenset()))
        (first, _), (second, _) = self.shards
        self.shards = [(first, groups), (second, ALL - groups)]
        self.begin()

    @rule()
    def merge(self) -> None:
        for shard, _ in self.shards:
            shard.compact()

    @rule(data=st.data(), name=st.sampled_from(sorted(KEYS)))
    def get(self, data: st.DataObject, name: str) -> None:
        table = next(table for table in TABLES if table.name == name)
        keys = data.draw(st.lists(st.sampled_from(KEYS[name]), unique=True))
        for shard, groups in self.shards:
            mine = [key for key in keys if Write(name, key, 0, False, ()).group in groups]
            found = shard.get(name, probes_of(table, mine))
            assert found.schema.equals(table.schema.append(pa.field(PROBE, pa.int64(), False)))
            expected = [
                (*write.row, probe)
                for probe, key in enumerate(mine)
                for write in self.oracle.rows(table)
                if write.key == key
            ]
            assert tuples(found) == expected

    @rule(upto=st.integers(0, 40), name=st.sampled_from(sorted(KEYS)))
    def due(self, upto: int, name: str) -> None:
        table = next(table for table in TABLES if table.name == name)
        expected = [write.row for write in self.oracle.rows(table) if write.due <= upto]
        found = [
            row for shard, groups in self.shards for row in self.sorted(shard.due(name, groups, upto), table)
        ]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))

    def sorted(self, rows: pa.Table, table: StateTable) -> list[tuple[Any, ...]]:
        assert rows.schema.equals(table.schema)
        found = tuples(rows)
        assert [row[0] for row in found] == sorted(row[0] for row in found)
        return found

    @invariant()
    def all_rows(self) -> None:
        for table in TABLES:
            found = [
                row
                for shard, groups in self.shards
                for row in self.sorted(shard.scan(table.name, groups), table)
            ]
            assert sorted(map(repr, found)) == sorted(repr(write.row) for write in self.oracle.rows(table))

    @rule()
    def content(self) -> None:
        """Equal to that of a shard that got the same rows in one batch."""
        with tempfile.TemporaryDirectory() as folder:
            twin = Shard(Local(Path(folder)), name="twin", scratch=Path(folder))
            twin.begin(StateManifest(-1, COUNT, None, TABLES), ALL)
            writes = {table.name: rows_of(table, self.oracle.rows(table)[::-1]) for table in TABLES}
            twin.prepare(0, "0", writes, None)
            twin.commit(0, None)
            for shard, groups in self.shards:
                for table in TABLES:
                    found, wanted = (each.scan(table.name, groups) for each in (shard, twin))
                    assert sorted(encoded(found)) == sorted(encoded(wanted))


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.redis] if name == "redis" else []) for name in NAMES]
)
def backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """Each backend with the options it needs."""
    name: str = request.param
    return name, {"url": request.getfixturevalue("redis_url")} if name == "redis" else {}


@pytest.mark.parametrize(("loading", "rows"), [(60.0, 1000), (0.0, 1)], ids=["at once", "bit by bit"])
def test_a_shard_is_what_a_dictionary_says(
    backend: tuple[str, dict[str, str]], loading: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of a key group a single read loads, and whatever is committed in between."""
    monkeypatch.setattr(run, "SECTION_ROWS", 2)
    monkeypatch.setattr(merge, "FAN_IN", 2)
    monkeypatch.setattr(keyed, "LOADING", loading)
    monkeypatch.setattr(keyed, "PART_ROWS", rows)
    name, options = backend
    machine = type("Machine", (Machine,), {"backend": name, "options": options})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30 if name == "columnar" else 8,
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(params=["memory", "rocksdb", pytest.param("redis", marks=pytest.mark.redis)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store, empty."""
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "rocksdb":
        made = RocksStore(tmp_path / "rocksdb", 1 << 20)
    else:
        made = RedisStore({"url": request.getfixturevalue("redis_url"), "prefix": tmp_path.name})
    yield made
    made.close()


def test_a_store_changes_just_the_groups_that_are_as_they_should_be(store: Store) -> None:
    assert store.put([], {1: "", 2: ""}, {1: "a", 2: "b"}) == {1, 2}
    changes = [Change("t", group, b"k", b"rows", 5) for group in (1, 2, 3)]
    assert store.put(changes, {1: "a", 2: "a", 3: "a"}, {1: "c", 2: "c", 3: "c"}) == {1}
    ids = [(group, b"k") for group in (1, 2, 3)]
    assert store.get("t", ids) == ([b"rows", None, None], {1: "c", 2: "b"})
    assert store.due("t", frozenset({1, 2, 3}), 5) == ([(1, b"k")], {1: "c", 2: "b"})
    assert [store.scan("t", group) for group in (1, 2)] == [[b"rows"], []]
    store.drop(["t"], frozenset({1}))
    assert store.get("t", ids) == ([None, None, None], {2: "b"})


def test_a_store_finds_all_keys_of_a_group_and_no_others(store: Store) -> None:
    names = [number.to_bytes(8, "big") for number in range(1000)]
    groups = {group: f"{group}" for group in range(4)}
    changes = [Change("t", group, key, b"%d" % group, 5) for group in groups for key in names]
    store.put(changes, dict.fromkeys(groups, ""), groups)
    for group in groups:
        assert store.scan("t", group) == [b"%d" % group] * len(names)
        assert sorted(store.due("t", frozenset({group}), 5)[0]) == [(group, key) for key in names]
    store.passed("t", frozenset({1}), 5)
    assert len(store.due("t", frozenset({0, 2}), 5)[0]) == 2 * len(names)


def test_a_store_lays_no_change_over_another_state(store: Store) -> None:
    """Several writers count one key up; each change that was taken counts once."""
    store.put([Change("t", 0, b"k", b"0", NEVER)], {0: ""}, {0: "0 start"})

    def count(writer: int) -> int:
        taken = 0
        for _ in range(50):
            (rows,), texts = store.get("t", [(0, b"k")])
            assert rows is not None
            assert texts[0].startswith(rows.decode() + " ")
            more = str(int(rows) + 1)
            changes = [Change("t", 0, b"k", more.encode(), NEVER)]
            taken += len(store.put(changes, {0: texts[0]}, {0: f"{more} {writer}"}))
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = sum(pool.map(count, range(4)))
    assert store.get("t", [(0, b"k")])[0] == [str(taken).encode()]


def test_a_backend_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'granite'.*columnar, rocksdb, redis, memory"):
        Shard(Local(tmp_path), name="a", scratch=tmp_path, backend="granite")


def test_redis_out_of_reach_is_named_without_its_password(tmp_path: Path) -> None:
    shard = Shard(
        Local(tmp_path),
        name="a",
        scratch=tmp_path,
        backend="redis",
        options={"url": "redis://:secret@127.0.0.1:1/0"},
    )
    shard.begin(StateManifest(-1, COUNT, None, TABLES), ALL)
    with pytest.raises(StateError, match=r"127\.0\.0\.1:1 ") as raised:
        shard.get("numbers", probes_of(NUMBERS, [(1,)]))
    assert "secret" not in str(raised.value)
    shard.close()
