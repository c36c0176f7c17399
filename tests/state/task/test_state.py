"""State as a task sees it: spread over nodes, and what was written last at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.batch.ticket import Ticket
from tidegate.batch.time import Time
from tidegate.rescale.route import Route
from tidegate.rescale.spread import respread
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.fleet.nodes import agreed
from tidegate.state.log.manifest import StateManifest, together
from tidegate.state.table.table import DUE, GONE, HASH, NEVER, PROBE, StateTable
from tidegate.state.task import hot_keys
from tidegate.state.task.assignment import Assignment
from tidegate.state.task.hot_keys import HotKeys
from tidegate.state.task.state import TaskState
from tidegate.state.wire.client import client_for
from tidegate.state.wire.commands import Begin, Nonces

TABLE = StateTable("count", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
GROUPS = 16
STEP = 2**64 // 1000


def hashes(ids: list[int]) -> Any:
    """Ids from 0 to 999, spread over the whole space."""
    return np.array([number * STEP for number in ids], np.uint64)


def keys(*ids: int) -> pa.Table:
    return pa.table({HASH: hashes([*ids]), "id": [*ids]}, schema=TABLE.probes)


def rows(values: dict[int, int | None], *, due: int = NEVER) -> pa.Table:
    """Ids and what is kept for them; None takes a key away."""
    ids = list(values)
    columns = {
        HASH: hashes(ids),
        DUE: [due] * len(ids),
        GONE: [n is None for n in values.values()],
        "id": ids,
        "n": list(values.values()),
    }
    return pa.table(columns, schema=TABLE.written)


class Fleet:
    """Two nodes, and the driver's part of the protocol."""

    def __init__(self, local: LocalNodes, scratch: Path, partitions: int) -> None:
        self.local = local
        self.scratch = scratch
        """Of the one executor that its tasks run in, each in another worker."""
        self.route = Route.even(GROUPS, nodes=2, partitions=partitions)
        self.base = StateManifest(-1, GROUPS, None, (TABLE,))
        self.nonces: Nonces = {}

    def client(self, node: int) -> Any:
        address = self.local.nodes[node].address
        return client_for(address, security=self.local.security, pipeline="p", timeout=20.0)

    def begin(self, watermark: int | None = None, attempt: int = 1) -> Assignment:
        self.ticket = Ticket(1, self.base.batch_id + 1, attempt)
        self.watermark = watermark
        for node in (0, 1):
            groups = self.route.groups_of(node)
            self.client(node).begin(Begin(self.ticket, self.base, groups, watermark))
        addresses = tuple(node.address for node in self.local.nodes)
        hosts = tuple(node.host for node in self.local.nodes)
        time, security = Time(self.base.closed, watermark), self.local.security
        return Assignment("p", security, self.ticket, self.nonces, time, self.route, addresses, hosts, 20.0)

    def task(self, watermark: int | None = None) -> TaskState:
        """That of the first partition, in a new batch."""
        return TaskState(self.begin(watermark), 0, self.scratch)

    def commit(self, count: str = "wire") -> int:
        """End the batch; the bytes that its tasks sent and received, or another sum of what they counted."""
        answers = [self.client(node).prepare(self.ticket) for node in (0, 1)]
        runs = together(answer.runs for answer in answers)
        self.base = StateManifest(self.ticket.batch_id, GROUPS, self.watermark, (TABLE,), runs)
        for node in (0, 1):
            self.client(node).commit(self.ticket, self.watermark)
        self.nonces = agreed(answer.nonces for answer in answers)
        return sum(answer.stats.get(count, 0) for answer in answers)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalNodes]:
    with LocalNodes(
        2,
        pipeline="p",
        log=str(tmp_path / "log"),
        scratch=tmp_path / "scratch",
        backend="columnar",
        memory=1 << 28,
        durable=True,
        options={},
        timeout=20.0,
    ) as nodes:
        yield nodes


def found(state: TaskState, *ids: int) -> dict[int, int]:
    answer = state.get(TABLE, keys(*ids))
    assert answer.schema.names == [*TABLE.schema.names, PROBE]
    assert answer[PROBE].to_pylist() == sorted(answer[PROBE].to_pylist())
    assert [ids[place] for place in answer[PROBE].to_pylist()] == answer["id"].to_pylist()
    return dict(zip(answer["id"].to_pylist(), answer["n"].to_pylist(), strict=True))


def test_a_task_whose_groups_are_on_two_nodes(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path, partitions=1)
    state = fleet.task()
    state.put(TABLE, rows({900: 9, 10: 1, 500: 5}))
    state.stage((TABLE,), late=0)
    fleet.commit()
    hot_keys.forget(tmp_path, local.security.token)
    state = fleet.task()
    assert found(state, 500, 7, 10, 900) == {500: 5, 10: 1, 900: 9}
    assert state.scan(TABLE)["id"].to_pylist() == [10, 500, 900]


def test_bytes_to_and_from_nodes_on_other_hosts_are_counted_apart(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path, partitions=1)

    def counted(afar: set[str], what: str = "wire_remote") -> int:
        scratch = tmp_path / str(fleet.base.batch_id)  # Nothing is remembered.
        state = TaskState(fleet.begin(), 0, scratch, here=lambda address: address not in afar)
        assert found(state, 10, 20, 600) == {}
        state.due(TABLE, 5)
        state.put(TABLE, rows({11: 1, 21: 2, 601: 6}))
        state.stage((TABLE,), late=0)
        return fleet.commit(what)

    first, second = (node.address for node in local.nodes)
    assert counted(set()) == 0
    assert counted({first}) > counted({second}) > 0
    assert counted({first}) + counted({second}) == counted({first, second}) == counted(set(), "wire")


def test_what_a_worker_wrote_the_next_one_need_not_fetch(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path, partitions=1)
    state = fleet.task()
    state.put(TABLE, rows({10: 1, 20: 2, 30: None}))
    state.stage((TABLE,), late=0)
    written = fleet.commit()
    state = fleet.task()
    assert found(state, 10, 20, 30) == {10: 1, 20: 2}
    state.put(TABLE, rows({10: 2, 20: 3, 30: None}))
    state.stage((TABLE,), late=0)
    assert fleet.commit() == written, "only what was staged went over the wire"


def test_the_rest_is_fetched(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path, partitions=1)
    for values in ({10: 1, 20: 2, 600: 6}, {20: 3}):
        state = fleet.task()
        state.put(TABLE, rows({**values}))
        state.stage((TABLE,), late=0)
        fleet.commit()
    assert found(fleet.task(), 600, 20, 11, 10) == {600: 6, 20: 3, 10: 1}


def test_what_a_worker_wrote_is_right_on_the_next_route_too(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path, partitions=2)
    assignment = fleet.begin()
    for partition, values in ((0, {10: 1, 20: 2}), (1, {600: 6, 900: 9})):
        state = TaskState(assignment, partition, tmp_path)
        state.put(TABLE, rows({**values}))
        state.stage((TABLE,), late=0)
    fleet.commit()
    fleet.route = respread(fleet.route, nodes=1, partitions=1)
    assignment = fleet.begin()
    fleet.begin(attempt=1)  # From here on it would not answer.
    assert found(TaskState(assignment, 0, tmp_path), 10, 20) == {10: 1, 20: 2}
    assignment = fleet.begin(attempt=2)
    assert found(TaskState(assignment, 0, tmp_path), 10, 600, 20, 900) == {10: 1, 600: 6, 20: 2, 900: 9}


def test_what_was_written_in_another_place_since_is_not_remembered_wrongly(
    local: LocalNodes, tmp_path: Path
) -> None:
    fleet = Fleet(local, tmp_path / "here", partitions=1)
    for place, count in (("here", 1), ("there", 2)):  # The task is on another executor the second time.
        fleet.scratch = tmp_path / place
        state = fleet.task()
        state.put(TABLE, rows({10: count}))
        state.stage((TABLE,), late=0)
        fleet.commit()
    fleet.scratch = tmp_path / "here"
    assert found(fleet.task(), 10) == {10: 2}


def test_an_attempt_that_was_given_up_is_not_remembered(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path / "1", partitions=1)
    for attempt, count in ((1, 5), (2, 1)):
        state = TaskState(fleet.begin(attempt=attempt), 0, tmp_path / str(attempt))
        state.put(TABLE, rows({10: count}))
        state.stage((TABLE,), late=0)
    fleet.commit()
    assert found(fleet.task(), 10) == {10: 1}


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_attempt_that_another_one_overtook_is_not_remembered(
    local: LocalNodes, tmp_path: Path, partitions: int
) -> None:
    """Spark ran a task twice, in two executors, and the user's function answered differently."""
    fleet = Fleet(local, tmp_path / "slow", partitions=partitions)
    assignment = fleet.begin()
    for executor, count in (("slow", 5), ("quick", 1)):
        state = TaskState(assignment, 0, tmp_path / executor)
        state.put(TABLE, rows({10: count}))
        state.stage((TABLE,), late=0)
    fleet.commit()
    again = fleet.begin()
    assert found(TaskState(again, 0, tmp_path / "slow"), 10) == {10: 1}
    assert (
        HotKeys(tmp_path / "slow", local.security.token, 0).recall(TABLE, fleet.nonces[TABLE.name][0]) is None
    )
    assert (
        HotKeys(tmp_path / "quick", local.security.token, 0).recall(TABLE, fleet.nonces[TABLE.name][0])
        is not None
    )


def test_where_nodes_have_different_attempts_nothing_is_recalled() -> None:
    one, other = {"t": {0: 7, 1: 8}, "u": {0: 9}}, {"t": {0: 7, 1: 6}}
    assert agreed([one, other]) == {"t": {0: 7}, "u": {0: 9}}


@pytest.mark.parametrize("trouble", ["no folder can be made", "too many rows"])
def test_without_a_cache_all_is_fetched(
    local: LocalNodes, tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(local, tmp_path / "executor", partitions=1)
    if trouble == "too many rows":
        monkeypatch.setattr(hot_keys, "_MOST_BYTES", 10)
    else:
        fleet.scratch.write_text("no folder")
    for number in range(2):
        state = fleet.task()
        assert found(state, 10) == ({10: number} if number else {})
        state.put(TABLE, rows({10: number + 1}))
        state.stage((TABLE,), late=0)
        fleet.commit()
    assert not list(fleet.scratch.rglob("*.arrow"))


def test_nothing_is_left_of_a_pipeline_that_has_ended(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path / "executor", partitions=1)
    for _ in range(3):
        state = fleet.task()
        state.put(TABLE, rows({10: 1}))
        state.stage((TABLE,), late=0)
        fleet.commit()
    assert len([path for path in fleet.scratch.rglob("*") if path.is_file()]) == 1
    hot_keys.forget(fleet.scratch, local.security.token)
    assert not [path for path in fleet.scratch.rglob("*") if path.is_file()]


def test_a_row_that_is_due_is_not_remembered(local: LocalNodes, tmp_path: Path) -> None:
    fleet = Fleet(local, tmp_path, partitions=1)
    state = fleet.task(watermark=5)
    state.put(TABLE, rows({10: 1}, due=8))
    state.stage((TABLE,), late=0)
    fleet.commit()
    state = fleet.task(watermark=8)
    assert found(state, 10) == {10: 1}
    assert state.due(TABLE, 8)["id"].to_pylist() == [10]
    state.stage((TABLE,), late=0)
    fleet.commit()
    assert found(fleet.task(watermark=8), 10) == {}


def test_a_table_is_put_once(local: LocalNodes, tmp_path: Path) -> None:
    state = Fleet(local, tmp_path, partitions=1).task()
    state.put(TABLE, rows({10: 1}))
    with pytest.raises(ValueError, match="put twice"):
        state.put(TABLE, rows({20: 1}))
