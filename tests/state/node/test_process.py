"""Every operation of a state node, against a real process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.state.node_kit import (
    ALL,
    BUFFER,
    EMPTY,
    PIPELINE,
    TABLE,
    Driver,
    await_that,
    connected,
    group,
    hashes,
    one_node,
    probes,
    stored,
    table_of,
    values,
    written,
)
from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, StaleError, StateError
from tidegate.security.security import VARIABLE, Security
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.fleet.sockets import SocketFolder
from tidegate.state.node.node import StateNode
from tidegate.state.node.shard import Shard
from tidegate.state.wire.client import NodeClient
from tidegate.state.wire.commands import Begin
from tidegate.storage.place import open_storage
from tidegate.testing import faults


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    with one_node(tmp_path_factory.mktemp("node")) as (running, _):
        yield running


@pytest.fixture
def node(nodes: LocalNodes) -> Iterator[NodeClient]:
    client = connected(nodes)
    yield client
    client.close()


@pytest.fixture
def driver(node: NodeClient) -> Driver:
    return Driver(node)


def test_what_a_batch_wrote_is_read_by_the_next(driver: Driver) -> None:
    driver.batch({1: 10, 2: 20, 3: 30})
    ticket = driver.begin()
    rows = driver.node.get(ticket, TABLE.name, probes([7, 3, 1]))
    assert rows.schema.names == [*TABLE.schema.names, "_probe"]
    assert (rows["_probe"].to_pylist(), rows["n"].to_pylist()) == ([1, 2], [30, 10])


def test_what_is_staged_is_not_read_in_the_same_batch(driver: Driver) -> None:
    driver.batch({1: 10})
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({1: 11, 2: 22}))
    assert values(driver.node.get(ticket, TABLE.name, probes([1, 2]))) == {1: 10}


def test_prepared_writes_are_not_current_until_the_commit(driver: Driver) -> None:
    driver.batch({1: 10})
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({1: 11}))
    driver.node.prepare(ticket)
    assert driver.state() == {1: 10}
    driver.node.commit(ticket, None)
    assert driver.state() == {1: 11}


def test_an_attempt_that_came_to_nothing_leaves_nothing(driver: Driver) -> None:
    driver.batch({1: 10})
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({1: 11}))
    driver.node.prepare(ticket)
    again = driver.begin(attempt=1)
    assert driver.node.status().staged == 0
    driver.node.stage(again, TABLE.name, 0, written({2: 20}))
    driver.finish(again)
    assert driver.state() == {1: 10, 2: 20}


def test_due_tells_the_rows_that_fall_due_and_the_commit_removes_them(driver: Driver) -> None:
    driver.batch({1: 10}, due=100)
    driver.batch({2: 20}, due=200)
    ticket = driver.begin(watermark=150)
    assert values(driver.node.due(ticket, TABLE.name, ALL, 150)) == {1: 10}
    assert values(driver.node.scan(ticket, TABLE.name, ALL)) == {1: 10, 2: 20}
    driver.finish(ticket, 150)
    assert driver.state() == {2: 20}


def test_scan_tells_the_rows_of_just_the_groups_asked_for(driver: Driver) -> None:
    driver.batch({key: key for key in range(50)})
    wanted = frozenset({3, 4, 9})
    expected = {key: key for key in range(50) if group(key) in wanted}
    assert expected
    ticket = driver.begin()
    assert values(driver.node.scan(ticket, TABLE.name, wanted)) == expected


def test_prepare_answers_rows_by_table_and_partition_and_sums_of_what_tasks_counted(
    driver: Driver,
) -> None:
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({1: 1}), {"late": 2})
    driver.node.stage(ticket, TABLE.name, 1, written({2: 2, 3: 3}), {"late": 3, "seen": 9})
    driver.node.stage(ticket, BUFFER.name, 1, BUFFER.written.empty_table())
    answer = driver.node.prepare(ticket)
    assert answer.tables == {TABLE.name: {0: 1, 1: 2}, BUFFER.name: {1: 0}}
    assert answer.stats == {"late": 5, "seen": 9}
    assert [run.sequence for run in answer.runs] == [0]
    assert answer.bytes > 0


def test_of_two_writes_of_a_partition_the_last_one_counts(driver: Driver) -> None:
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({1: 1, 2: 2}), {"late": 7})
    driver.node.stage(ticket, TABLE.name, 0, written({1: 5}), {"late": 1})
    answer = driver.finish(ticket)
    assert (answer.tables, answer.stats) == ({TABLE.name: {0: 1}}, {"late": 1})
    assert driver.state() == {1: 5}


def test_a_buffer_keeps_every_row(driver: Driver) -> None:
    for text in ("a", "b"):
        ticket = driver.begin()
        rows = table_of(BUFFER.written, [hashes([1, 1]), [9, 9], [1, 1], [text, text + text]])
        driver.node.stage(ticket, BUFFER.name, 0, rows)
        driver.finish(ticket)
    assert sorted(stored(driver.node, BUFFER, ALL)["v"].to_pylist()) == ["a", "aa", "b", "bb"]


def test_repeated_requests_change_nothing(driver: Driver) -> None:
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({1: 1}))
    first = driver.node.prepare(ticket)
    driver.begin()
    assert driver.node.prepare(ticket) == first
    driver.node.commit(ticket, None)
    driver.node.commit(ticket, None)
    driver.begin()
    assert driver.node.prepare(ticket) == first
    assert driver.node.status().phase == "committed"
    assert driver.state() == {1: 1}


def test_a_node_that_missed_the_commit_learns_of_it_by_the_next_begin(driver: Driver) -> None:
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({1: 1}))
    answer = driver.node.prepare(ticket)
    driver.base = type(driver.base)(0, driver.base.groups, None, driver.base.tables, answer.runs)
    following = driver.begin()
    assert values(driver.node.get(following, TABLE.name, probes([1]))) == {1: 1}


def test_a_driver_that_was_replaced_is_refused_whatever_it_asks(node: NodeClient) -> None:
    zombie = Driver(node)
    ticket = zombie.begin()
    current = Driver(node)
    current.batch({1: 1})
    before = node.status()
    requests: list[Callable[[], object]] = [
        zombie.begin,
        lambda: node.get(ticket, TABLE.name, probes([1])),
        lambda: node.due(ticket, TABLE.name, ALL, 5),
        lambda: node.scan(ticket, TABLE.name, ALL),
        lambda: node.stage(ticket, TABLE.name, 0, written({1: 66})),
        lambda: node.prepare(ticket),
        lambda: node.commit(ticket, None),
    ]
    for request in requests:
        with pytest.raises(FencedError, match="has taken over"):
            request()
    assert (node.status(), current.state()) == (before, {1: 1})


def test_a_straggler_of_an_earlier_attempt_cannot_write_into_the_next(driver: Driver) -> None:
    straggler = driver.begin()
    ticket = driver.begin(attempt=1)
    with pytest.raises(StaleError):
        driver.node.stage(straggler, TABLE.name, 0, written({1: 66}))
    with pytest.raises(StaleError):
        driver.node.get(straggler, TABLE.name, probes([1]))
    driver.node.stage(ticket, TABLE.name, 0, written({1: 1}))
    driver.finish(ticket)
    assert driver.state() == {1: 1}


def test_a_batch_cannot_be_committed_with_another_watermark_than_it_began_with(driver: Driver) -> None:
    ticket = driver.begin(watermark=5)
    driver.node.prepare(ticket)
    with pytest.raises(StateError, match="watermark"):
        driver.node.commit(ticket, 6)
    driver.node.commit(ticket, 5)


def test_a_task_that_is_late_never_reads_the_state_of_a_later_batch(driver: Driver) -> None:
    """Readers go on with the ticket of their batch while the driver commits it and begins the next."""
    keys = list(range(200))
    driver.batch(dict.fromkeys(keys, 0))
    current: list[tuple[Ticket, int]] = []
    over = threading.Event()
    wrong: list[object] = []

    def read() -> int:
        taken = 0
        while not over.is_set():
            if not current:
                continue
            ticket, expected = current[-1]
            try:
                rows = driver.node.get(ticket, TABLE.name, probes(keys))
            except StaleError:
                continue
            taken += 1
            if set(rows["n"].to_pylist()) != {expected}:
                wrong.append((ticket, expected, set(rows["n"].to_pylist())))
        return taken

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for step in range(1, 40):
                ticket = driver.begin()
                current.append((ticket, step - 1))
                driver.node.stage(ticket, TABLE.name, 0, written(dict.fromkeys(keys, step)))
                driver.finish(ticket)
        finally:
            over.set()
    assert sum(reader.result() for reader in readers) > 0
    assert not wrong


@pytest.fixture
def held(tmp_path: Path) -> Iterator[StateNode]:
    """A node without its wire, so that a test decides what happens between two steps of a request."""
    shard = Shard(open_storage(str(tmp_path / "log")), name="a", scratch=tmp_path)
    holder = StateNode(shard, name="a", staged=1 << 20)
    yield holder
    holder.close()


def test_a_task_overtaken_while_it_sends_its_keys_reads_nothing(held: StateNode) -> None:
    first, second = Ticket(1, 0), Ticket(1, 1)
    held.begin(Begin(first, EMPTY, ALL, None))
    held.readable(first, TABLE.name)
    held.stage(first, TABLE.name, 0, written({1: 1}), {})
    runs = held.prepare(first).runs
    overtaking: list[Callable[[], object]] = [
        lambda: held.commit(first, None),
        lambda: held.begin(Begin(second, replace(EMPTY, batch_id=0, runs=runs), ALL, None)),
    ]
    reads: list[Callable[[], object]] = [
        lambda: held.get(first, TABLE.name, probes([1])),
        lambda: held.due(first, TABLE.name, ALL, 5),
        lambda: held.scan(first, TABLE.name, ALL),
    ]
    for overtake in overtaking:
        overtake()
        for read in reads:
            with pytest.raises(StaleError):
                read()
    assert values(held.get(second, TABLE.name, probes([1]))) == {1: 1}


def test_a_task_overtaken_while_it_sends_its_rows_stages_nothing(held: StateNode) -> None:
    held.begin(Begin(Ticket(1, 0), EMPTY, ALL, None))
    held.writable(Ticket(1, 0), TABLE.name)
    held.begin(Begin(Ticket(1, 0, 1), EMPTY, ALL, None))
    with pytest.raises(StaleError):
        held.stage(Ticket(1, 0), TABLE.name, 0, written({1: 1}), {})
    assert held.status().staged == 0


def test_tasks_stage_in_parallel(driver: Driver) -> None:
    ticket = driver.begin()

    def task(partition: int) -> None:
        rows = written(dict.fromkeys(range(partition * 100, partition * 100 + 100), partition))
        driver.node.stage(ticket, TABLE.name, partition, rows, {"late": 1})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(task, range(24)))
    answer = driver.finish(ticket)
    assert answer.tables == {TABLE.name: dict.fromkeys(range(24), 100)}
    assert answer.stats == {"late": 24}
    assert len(driver.state()) == 2400


def test_a_request_that_hangs_does_not_hold_up_other_tasks(tmp_path: Path) -> None:
    hang = faults.Fault("node.get", "hang")
    with (
        faults.planned(tmp_path / "faults", [hang]),
        one_node(tmp_path, timeout=120.0) as (_, node),
        ThreadPoolExecutor(1) as pool,
    ):
        driver = Driver(node)
        ticket = driver.begin()
        hanging = pool.submit(node.get, ticket, TABLE.name, probes([1]))
        while not faults.struck(tmp_path / "faults"):
            assert not hanging.done()
        assert node.get(ticket, TABLE.name, probes([2])).num_rows == 0
        assert node.status().busy > 0
        assert not hanging.done()
        faults.release(tmp_path / "faults", hang)
        assert hanging.result().num_rows == 0


def test_an_error_at_any_point_is_told_and_the_next_try_succeeds(tmp_path: Path) -> None:
    points = [point for point in faults.POINTS if point.startswith("node.")]
    plan = [
        # A compaction keeps to no batch: it may be as late as the one after the next commit.
        faults.Fault(point, "error", batch_id=None if point == "node.compaction" else batch_id)
        for batch_id, point in enumerate(points)
    ]
    with faults.planned(tmp_path / "faults", plan), one_node(tmp_path) as (_, node):
        driver = Driver(node)

        def attempt(step: int, number: int) -> None:
            ticket = driver.begin(number)
            got = values(node.get(ticket, TABLE.name, probes([1])))
            node.stage(ticket, TABLE.name, 0, written({1: got.get(1, 0) + 1, 100 + step: step}))
            answer = node.prepare(ticket)
            # It is in the ledger by then: the next `begin` makes up for a commit that failed.
            with contextlib.suppress(StateError):
                node.commit(ticket, None)
            driver.base = replace(driver.base, batch_id=ticket.batch_id, runs=answer.runs)

        for step in range(len(points) + 1):
            try:
                attempt(step, 0)
            except StateError:
                attempt(step, 1)
        await_that(lambda: faults.struck(tmp_path / "faults") == {fault.name for fault in plan})
        driver.begin()
        steps = range(len(points) + 1)
        assert driver.state() == {1: len(steps)} | {100 + step: step for step in steps}


def test_state_survives_the_process(tmp_path: Path) -> None:
    with one_node(tmp_path) as (nodes, node):
        driver = Driver(node)
        driver.batch({1: 10, 2: 20})
        driver.batch({2: 21})
        os.kill(nodes.nodes[0].pid, signal.SIGKILL)
        nodes.replace(0)
        driver.node = connected(nodes)
        ticket = driver.begin()
        assert values(driver.node.get(ticket, TABLE.name, probes([1, 2]))) == {1: 10, 2: 21}


def test_nothing_piles_up_over_many_batches(driver: Driver, nodes: LocalNodes) -> None:
    driver.batch({1: 0})
    before = 0
    for step in range(200):
        given_up = driver.begin()
        driver.node.stage(given_up, TABLE.name, 0, written(dict.fromkeys(range(500), step)))
        ticket = driver.begin(attempt=1)
        driver.node.stage(ticket, TABLE.name, 0, written(dict.fromkeys(range(500), step)))
        driver.finish(ticket)
        status = driver.node.status(sizes=True)
        assert status.staged == 0
        if step == 50:
            before = _resident(nodes.nodes[0].pid)
    assert status.sizes["runs"] < 40
    assert _resident(nodes.nodes[0].pid) - before < 64 << 20


def _resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_a_node_loads_neither_spark_nor_pandas(driver: Driver, nodes: LocalNodes) -> None:
    driver.batch({1: 1})
    assert driver.state() == {1: 1}
    mapped = Path(f"/proc/{nodes.nodes[0].pid}/maps").read_text()
    assert "/pyarrow/" in mapped
    assert "/pandas/" not in mapped
    code = (
        "import sys, tidegate.state.node.process\n"
        "heavy = {'pyspark', 'pandas', 'typer', 'rich', 'pydantic'} & sys.modules.keys()\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_secret_is_among_the_arguments(tmp_path: Path) -> None:
    options = {"url": "redis://:hunter2@example.org/0"}
    with one_node(tmp_path, options=options, bind="127.0.0.1") as (nodes, _):
        arguments = Path(f"/proc/{nodes.nodes[0].pid}/cmdline").read_bytes()
        assert nodes.security.tls is not None
        for secret in (nodes.security.token, "hunter2", nodes.security.tls.key.splitlines()[1]):
            assert secret.encode() not in arguments


def test_a_node_hears_the_options_of_its_backend(tmp_path: Path, redis_url: str) -> None:
    import redis

    options = {"url": redis_url, "prefix": "told-by-the-driver"}
    with one_node(tmp_path, backend="redis", options=options) as (_, client):
        driver, server = Driver(client), redis.Redis.from_url(redis_url)
        driver.batch({1: 10})
        driver.node.get(driver.begin(), TABLE.name, probes([1]))
        await_that(lambda: bool(server.keys("told-by-the-driver*")))


def test_a_node_listens_at_a_socket_that_only_its_user_may_open(nodes: LocalNodes) -> None:
    pid, place = nodes.nodes[0].pid, Path(nodes.nodes[0].address.removeprefix("unix:"))
    assert place.is_socket()
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    inodes = {target[8:-1] for target in _descriptors(pid) if target.startswith("socket:[")}
    listening = [
        fields
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        if (fields := line.split())[9] in inodes
    ]
    assert listening == []


def _descriptors(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return found


PLAIN = Security("secret")


def start(folder: Path, *extra: str, security: Security | None = PLAIN) -> subprocess.Popen[bytes]:
    """A node by its command line."""
    given = {"--name": "a", "--pipeline": PIPELINE, "--log": folder / "log", "--scratch": folder / "scratch"}
    arguments = [str(text) for pair in given.items() for text in pair]
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.state.node.process", *arguments, *extra],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **({VARIABLE: security.as_text()} if security else {})},
    )


@pytest.fixture
def place() -> Iterator[str]:
    """Where a node may listen."""
    sockets = SocketFolder()
    yield f"unix:{sockets.path()}"
    sockets.close()


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_a_node_ends_when_told(tmp_path: Path, place: str, how: str) -> None:
    with start(tmp_path, "--bind", place) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told == {"name": "a", "address": place, "pid": process.pid}
        if how == "SIGTERM":
            process.terminate()
        else:
            process.stdin.close()
        assert process.wait(30) == 0
        assert not (tmp_path / "scratch").exists()
        assert not Path(place.removeprefix("unix:")).exists()


@pytest.mark.parametrize(
    ("bind", "security", "said"),
    [
        ("unix:/nowhere/at/all", None, "needs a token"),
        ("0.0.0.0", PLAIN, "needs --advertise"),
        ("127.0.0.1", PLAIN, "needs a certificate"),
    ],
)
def test_a_node_says_why_it_does_not_start(
    tmp_path: Path, bind: str, security: Security | None, said: str
) -> None:
    with start(tmp_path, "--bind", bind, security=security) as process:
        _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said in stderr.decode()
    assert "Traceback" not in stderr.decode()


def test_a_node_tells_where_it_is_reached(tmp_path: Path) -> None:
    given = "--bind", "0.0.0.0", "--advertise", "localhost"
    with start(tmp_path, *given, security=Security.of_run("p", tls=True).party("node")) as process:
        assert process.stdout is not None
        assert b'"address": "localhost:' in process.stdout.readline()
        process.communicate(b"", timeout=30)
