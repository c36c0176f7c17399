"""Shards: what is written when, and what is read when."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.state.shard_kit import (
    ALL,
    BUFFER,
    COUNT,
    EMPTY,
    LEFT,
    RIGHT,
    TABLE,
    Counted,
    Driver,
    Fetched,
    Make,
    hashes,
    keys,
    rows,
    values,
)
from tidegate.errors import StaleError, StateError
from tidegate.state.log import run
from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.backends import keyed
from tidegate.state.node.backends.redis import RedisStore
from tidegate.state.table.keys import group_of
from tidegate.storage.local import Local
from tidegate.storage.remote import Remote


def test_a_batch_is_one_file_and_an_empty_one_is_none(make: Make, tmp_path: Path) -> None:
    driver = Driver(make())
    driver.batch({"counts": rows([1, 2]), "events": rows([1], table=BUFFER)})
    assert len(Local(tmp_path / "log").names()) == 1
    driver.batch({"counts": rows([])})
    driver.batch({})
    assert len(Local(tmp_path / "log").names()) == 1
    assert driver.base.batch_id == 2


def test_what_is_prepared_is_not_seen_before_the_commit(make: Make) -> None:
    driver = Driver(make())
    driver.batch({"counts": rows([1], 10)})
    driver.shard.prepare(1, "1", {"counts": rows([1], 20)}, None)
    assert values(driver.shard.get("counts", keys([1]))) == {1: 10}
    driver.shard.commit(1, None)
    assert values(driver.shard.get("counts", keys([1]))) == {1: 20}


def test_another_attempt_takes_the_place_of_the_first(make: Make) -> None:
    driver = Driver(make())
    driver.shard.prepare(0, "1", {"counts": rows([1, 2], 10)}, None)
    again = driver.shard.prepare(0, "2", {"counts": rows([2], 20)}, None)
    driver.shard.commit(0, None)
    assert len(again.runs) == 1
    assert values(driver.shard.scan("counts", ALL)) == {2: 20}


def test_requests_out_of_turn_are_refused(make: Make) -> None:
    driver = Driver(make())
    driver.batch({"counts": rows([1])})
    driver.shard.commit(0, None)  # A repetition.
    with pytest.raises(StaleError, match="batch 0 is over"):
        driver.shard.prepare(0, "1", {}, None)
    with pytest.raises(StaleError, match="batch 1 was not prepared"):
        driver.shard.commit(1, None)


def test_begin_reads_nothing(make: Make, tmp_path: Path) -> None:
    base = Driver(make()).batch({"counts": rows(range(100))})
    storage = Counted(tmp_path / "log")
    shard = make(storage)
    shard.begin(base, LEFT)
    assert storage.opens == 0
    assert shard.scan("counts", LEFT).num_rows > 0
    assert storage.opens == 1


@pytest.mark.parametrize("backend", ["columnar", "memory", "rocksdb"])
def test_the_first_read_after_a_restart_does_not_wait_for_all_state(
    make: Make, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SECTION_ROWS", 100)
    monkeypatch.setattr(keyed, "LOADING", 0.0)
    monkeypatch.setattr(keyed, "PART_ROWS", 100)
    base = Driver(make()).batch({"counts": rows(range(20_000), 1)})
    storage = Fetched(tmp_path / "log")
    driver = Driver(make(storage, backend=backend, memory=1 << 16), base)
    some = range(40)  # in all key groups
    assert values(driver.shard.get("counts", keys(some))) == dict.fromkeys(some, 1)
    assert storage.fetched < base.runs[0].bytes / 3
    for _ in range(20_000 // 100 * 2):
        assert values(driver.shard.get("counts", keys(some))) == dict.fromkeys(some, 1)
    everything = storage.fetched
    driver.batch({"counts": rows([3], 2)})
    assert values(driver.shard.get("counts", keys(range(5)))) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1}
    if backend != "columnar":  # By now all is loaded, and nothing has to be fetched any more.
        assert storage.fetched == everything


@pytest.mark.parametrize("backend", ["memory", "rocksdb", pytest.param("redis", marks=pytest.mark.redis)])
def test_batches_during_a_load_are_part_of_what_is_loaded(
    make: Make,
    tmp_path: Path,
    backend: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closing(Fetched):
        closed = False

        def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
            assert not self.closed, "a run was read"
            return super().read(name, spans)

    monkeypatch.setattr(keyed, "LOADING", 0.0)
    monkeypatch.setattr(keyed, "PART_ROWS", 10)
    ids = range(500)
    base = Driver(make()).batch({"counts": rows(ids, 0, due=50), "events": rows(ids, 0, table=BUFFER)})
    storage, options = Closing(tmp_path / "log"), {"prefix": tmp_path.name}
    if backend == "redis":
        options["url"] = request.getfixturevalue("redis_url")
    driver = Driver(make(storage, backend=backend, memory=1 << 10, options=options), base)
    for number in range(1, 60):
        for _ in range(3):
            driver.shard.get("counts", keys(ids))
        writes = {"counts": rows(ids[number::60], number), "events": rows([number], number, table=BUFFER)}
        if number % 3 == 0:
            writes["counts"] = rows(ids[number::60], gone=True)
        driver.batch(writes, 60 if number > 30 else 40)
        driver.shard.compact()
    twin = make()
    twin.begin(driver.base, ALL)
    storage.closed = True
    for name in ("counts", "events"):
        assert driver.shard.scan(name, ALL).equals(twin.scan(name, ALL))
        assert driver.shard.get(name, keys(ids)).equals(twin.get(name, keys(ids)))
        assert driver.shard.due(name, ALL, 1 << 62).equals(twin.due(name, ALL, 1 << 62))
    assert 0 < twin.scan("counts", ALL).num_rows < 500


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_read_does_not_wait_for_one_that_loads(make: Make, tmp_path: Path, backend: str) -> None:
    base = Driver(make()).batch({"counts": rows(range(1000), 1), "events": rows([1], table=BUFFER)})

    class Slow(Fetched):
        """Nothing comes from it any more once it is told so."""

        dry = False
        asked, go_on = threading.Event(), threading.Event()

        def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
            if self.dry:
                self.asked.set()
                self.go_on.wait(60)
            return super().read(name, spans)

    storage = Slow(tmp_path / "log")
    shard = make(storage, backend=backend)
    shard.begin(base, ALL)
    shard.scan(
        "counts", ALL
    )  # All of it is in memory now; the other table has to be fetched to load a group.
    storage.dry = True
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shard.get, "counts", keys([1]))
        assert storage.asked.wait(60)
        try:
            assert values(pool.submit(shard.get, "counts", keys([1, 2])).result(30)) == {1: 1, 2: 1}
            assert not first.done()
        finally:
            storage.go_on.set()
        assert values(first.result()) == {1: 1}


@pytest.mark.parametrize("backend", ["columnar", "memory", "rocksdb"])
def test_a_shard_that_is_there_already_reads_nothing_again(
    make: Make, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "LOADING", 60.0)
    driver = Driver(make(backend=backend))
    driver.batch({"counts": rows(range(100), 1)})
    driver.shard.get("counts", keys(range(100)))
    prepared = driver.shard.prepare(1, "1", {"counts": rows([5], 2)}, 3)
    driver.shard.get("counts", keys(range(100)))
    for name in Local(tmp_path / "log").names():
        Local(tmp_path / "log").delete(name)
    # The node never heard of the commit; the ledger has it.
    base = StateManifest.from_json(replace(driver.base, batch_id=1, closed=3, runs=prepared.runs).to_json())
    if backend != "columnar":  # which opens the new run only now
        driver.shard.begin(base, ALL)
        assert values(driver.shard.get("counts", keys([4, 5]))) == {4: 1, 5: 2}
    else:
        driver.shard.begin(driver.base, ALL)
        assert values(driver.shard.get("counts", keys([4, 5]))) == {4: 1, 5: 1}


def test_keys_and_groups_of_others_are_refused(make: Make) -> None:
    shard = make()
    shard.begin(EMPTY, LEFT)
    strange = [number for number in range(50) if int(hashes([number])[0].as_py()) >> 60 in RIGHT]
    with pytest.raises(StateError, match="are not held here"):
        shard.get("counts", keys(strange[:1]))
    with pytest.raises(StateError, match="are not held here"):
        shard.prepare(0, "1", {"counts": rows(strange)}, None)
    with pytest.raises(StateError, match="key groups 8-15 are not held here"):
        shard.scan("counts", ALL)
    with pytest.raises(StateError, match="key groups 8-15 are not held here"):
        shard.due("counts", RIGHT, 5)


def test_a_table_or_columns_that_are_not_known_are_refused(make: Make) -> None:
    driver = Driver(make())
    with pytest.raises(StateError, match="no state table 'other'; known: counts, events"):
        driver.shard.get("other", keys([1]))
    with pytest.raises(StateError, match="rows for state table counts have the columns"):
        driver.shard.prepare(0, "1", {"counts": rows([1]).drop_columns(["n"])}, None)


@pytest.mark.parametrize("backend", ["columnar", "memory", "rocksdb"])
def test_a_value_column_may_be_added(make: Make, backend: str) -> None:
    base = Driver(make(backend=backend)).batch({"counts": rows([1], 7)})
    wider = replace(TABLE, values=pa.schema([*TABLE.values, ("note", pa.string())]))
    shard = make(backend=backend)
    shard.begin(replace(base, tables=(wider, BUFFER)), ALL)
    found = shard.get("counts", keys([1]))
    assert found["n"].to_pylist() == [7]
    assert found["note"].to_pylist() == [None]


def test_a_damaged_run_is_named(make: Make, tmp_path: Path) -> None:
    base = Driver(make()).batch({"counts": rows(range(100))})
    path = tmp_path / "log" / base.runs[0].name
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    shard = make()
    shard.begin(base, ALL)
    with pytest.raises(StateError, match=f"run {path.name} is damaged: section 0"):
        shard.get("counts", keys([1]))


def test_without_durability_nothing_is_written(make: Make, tmp_path: Path) -> None:
    driver = Driver(make(durable=False))
    for number in range(20):
        driver.batch({"counts": rows(range(number, number + 5), number)})
        driver.shard.compact()
        driver.shard.begin(driver.base, ALL)
    assert Local(tmp_path / "log").names() == []
    assert values(driver.shard.get("counts", keys([0, 19, 23]))) == {0: 0, 19: 19, 23: 19}


@pytest.mark.parametrize("backend", ["columnar", "rocksdb"])
def test_state_may_be_larger_than_the_memory_limit(make: Make, backend: str) -> None:
    driver = Driver(make(backend=backend, memory=1 << 18))
    driver.shard.get("counts", keys(range(1000)))
    for number in range(5):
        driver.batch({"counts": rows(range(number, 20_000), number)})
        driver.shard.compact()
    found = values(driver.shard.get("counts", keys(range(20_000))))
    assert [found[number] for number in (0, 1, 3, 4, 19_999)] == [0, 1, 3, 4, 4]
    assert driver.shard.sizes()["bytes"] > 1 << 18


def test_a_long_merge_rests_between_its_parts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECTION_ROWS", 100)
    driver = Driver(make(memory=1 << 18))
    for number in range(4):
        driver.batch({"counts": rows(range(20_000), number)})
    seen: list[int] = []
    assert driver.shard.compact(lambda: seen.append(len(driver.shard.get("counts", keys([1])))))
    assert len(seen) > 10
    assert set(seen) == {1}, "reads go on"


def test_sizes_say_what_the_runs_hold(make: Make) -> None:
    driver = Driver(make())
    driver.batch({"counts": rows(range(10)), "events": rows([1, 2], table=BUFFER)})
    sizes = driver.shard.sizes()
    assert sizes["runs"] == 1
    assert sizes["tables"]["counts"]["rows"] == 10
    assert sizes["tables"]["events"]["rows"] == 2
    assert 0 < sizes["tables"]["counts"]["bytes"] < sizes["bytes"]


def test_sizes_are_told_by_key_group_of_those_that_count(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECTION_ROWS", 100)
    driver = Driver(make())
    base = driver.batch({"counts": rows(range(20_000)), "events": rows([5] * 500, table=BUFFER)})
    groups = driver.shard.sizes()["groups"]
    true = Counter(group_of(hashes([*range(20_000), *[5] * 500]).to_numpy(), COUNT).tolist())
    assert {number: count for number, (count, _) in groups.items()} == pytest.approx(
        {str(number): count for number, count in true.items()}, rel=0.05
    )
    bytes_of = driver.shard.sizes()["tables"]
    assert sum(size for _, size in groups.values()) == pytest.approx(
        bytes_of["counts"]["bytes"] + bytes_of["events"]["bytes"], rel=0.01
    )
    driver.shard.begin(base, frozenset({3, 4}))
    assert driver.shard.sizes()["groups"] == {number: groups[number] for number in ("3", "4")}


@pytest.mark.parametrize("backend", ["columnar", "memory"])
def test_a_reader_sees_one_batch_whole_beside_commits_and_merges(make: Make, backend: str) -> None:
    driver = Driver(make(backend=backend))
    driver.batch({"counts": rows(range(200), 0)})
    over = threading.Event()
    problems: list[object] = []

    def read() -> None:
        while not over.is_set():
            seen = set(values(driver.shard.get("counts", keys(range(200)))).values())
            everything = driver.shard.scan("counts", ALL)
            if len(seen) != 1 or everything.num_rows != 200:
                problems.append(seen)

    def merge() -> None:
        while not over.is_set():
            driver.shard.compact()

    threads = [threading.Thread(target=target) for target in (read, read, merge)]
    for thread in threads:
        thread.start()
    for number in range(1, 40):
        driver.batch({"counts": rows(range(200), number)})
    over.set()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.redis
def test_redis_serves_a_new_node_what_the_last_one_left(
    make: Make, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "LOADING", 60.0)
    options = {"url": redis_url, "prefix": tmp_path.name}
    driver = Driver(make(backend="redis", options=options))
    driver.shard.get("counts", keys(range(50)))
    driver.batch({"counts": rows(range(50), 1)})
    storage = Counted(tmp_path / "log")
    shard = make(storage, backend="redis", options=options)
    shard.begin(driver.base, ALL)
    assert set(values(shard.get("counts", keys(range(50)))).values()) == {1}
    assert storage.opens == 0


@pytest.mark.redis
def test_redis_is_loaded_again_when_it_is_behind_or_empty(make: Make, tmp_path: Path, redis_url: str) -> None:
    import redis

    options = {"url": redis_url, "prefix": tmp_path.name}
    driver = Driver(make(backend="redis", options=options))
    driver.batch({"counts": rows(range(50), 1)})
    driver.shard.get("counts", keys(range(50)))
    # In the ledger, but the node died before it heard.
    prepared = driver.shard.prepare(1, "1", {"counts": rows([3], 2)}, None)
    shard = make(backend="redis", options=options)
    shard.begin(replace(driver.base, batch_id=1, runs=prepared.runs), ALL)
    assert values(shard.get("counts", keys([2, 3]))) == {2: 1, 3: 2}
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    assert values(shard.get("counts", keys([2, 3]))) == {2: 1, 3: 2}


@pytest.mark.redis
def test_a_driver_that_was_replaced_leaves_its_successors_redis_alone(
    make: Make, tmp_path: Path, redis_url: str
) -> None:
    import redis

    options = {"url": redis_url, "prefix": tmp_path.name}
    old = Driver(make(backend="redis", options=options))
    old.batch({"counts": rows([1, 2], 1)})
    new = Driver(make(backend="redis", options=options), old.base)
    new.shard.get("counts", keys([1, 2]))
    new.batch({"counts": rows([1, 2], 10)})
    with redis.Redis.from_url(redis_url) as client:
        names = client.keys(f"{tmp_path.name}:version:*")
        before = client.mget(names)
        assert values(old.shard.get("counts", keys([1, 2]))) == {1: 1, 2: 1}
        assert client.mget(names) == before
        assert None not in before
    assert values(new.shard.get("counts", keys([1, 2]))) == {1: 10, 2: 10}


@pytest.mark.redis
def test_a_batch_is_not_laid_over_what_another_driver_loads_just_then(
    make: Make, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import redis

    options = {"url": redis_url, "prefix": tmp_path.name}
    old = Driver(make(backend="redis", options=options))
    old.batch({"counts": rows([1, 2], 1)})
    new = Driver(make(backend="redis", options=options), old.base)
    new.shard.get("counts", keys([1, 2]))
    new.batch({"counts": rows([1, 2], 10)})
    put = RedisStore.put

    def late(*arguments: Any) -> Any:
        """Redis starts again, and the old driver's tasks are the first to read, just before the write."""
        monkeypatch.setattr(RedisStore, "put", put)
        with redis.Redis.from_url(redis_url) as client:
            client.flushdb()
        old.shard.get("counts", keys([1, 2]))
        return put(*arguments)

    monkeypatch.setattr(RedisStore, "put", late)
    new.batch({"counts": rows([1], 11)})
    for _ in range(2):
        assert values(new.shard.get("counts", keys([1, 2]))) == {1: 11, 2: 10}
    assert values(new.shard.scan("counts", ALL)) == {1: 11, 2: 10}


@pytest.mark.s3
def test_a_shard_on_an_object_store_reads_just_the_ranges_it_needs(
    make: Make, s3_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Metered(Remote):
        calls = 0
        fetched = 0

        def open(self, name: str) -> pa.Buffer:
            raise AssertionError("a whole run was fetched")

        def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
            self.calls += 1
            self.fetched += sum(length for _, length in spans)
            return super().read(name, spans)

    monkeypatch.setattr(run, "SECTION_ROWS", 4_000)
    driver = Driver(make(Remote(s3_place)))
    driver.batch({"counts": rows(range(200_000), 1)})
    driver.batch({"counts": rows([7], 2), "events": rows([7], table=BUFFER)})
    total = sum(ref.bytes for ref in driver.base.runs)
    storage = Metered(s3_place)
    shard = make(storage)
    shard.begin(driver.base, ALL)
    assert storage.calls == 0
    assert values(shard.get("counts", keys([7, 8]))) == {7: 2, 8: 1}
    assert storage.fetched < total / 10
    before = storage.calls
    assert values(shard.get("counts", keys([7, 8]))) == {7: 2, 8: 1}
    assert storage.calls == before


@pytest.mark.s3
def test_a_shard_on_an_object_store_merges_and_restarts(make: Make, s3_place: str) -> None:
    driver = Driver(make(Remote(s3_place)))
    for number in range(6):
        driver.batch({"counts": rows(range(number, 300), number)})
        driver.shard.compact()
    driver.batch({})
    shard = make(Remote(s3_place))
    shard.begin(driver.base, LEFT)
    assert len(driver.base.runs) < 6
    assert shard.scan("counts", LEFT).equals(driver.shard.scan("counts", LEFT))


@pytest.mark.s3
def test_what_a_batch_wrote_to_an_object_store_is_not_fetched_back(make: Make, s3_place: str) -> None:
    class Deaf(Remote):
        def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
            raise AssertionError(f"{name} was fetched")

    driver = Driver(make(Deaf(s3_place)))
    driver.batch({"counts": rows(range(100), 1)})
    assert driver.shard.scan("counts", ALL).num_rows == 100
