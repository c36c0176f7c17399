"""Bad and hostile requests: every one gets an error, none ends the node or changes what it holds."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from tests.state.node_kit import (
    ALL,
    BUFFER,
    COUNT,
    EMPTY,
    PIPELINE,
    TABLE,
    Driver,
    connected,
    group,
    hashes,
    one_node,
    probes,
    stored,
    table_of,
    written,
)
from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, StaleError, StateError
from tidegate.security.security import Security
from tidegate.state import codec
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.fleet.sockets import SocketFolder
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.node.node import StateNode
from tidegate.state.node.service import StateService
from tidegate.state.node.shard import Shard
from tidegate.state.table.rows import encoded
from tidegate.state.table.table import NEVER
from tidegate.state.wire import access
from tidegate.state.wire import commands as wire
from tidegate.state.wire.client import NodeClient
from tidegate.state.wire.commands import decode
from tidegate.storage.place import open_storage

fuzz = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
HELD = frozenset(range(COUNT // 2))
KEYS = [key for key in range(40) if group(key) in HELD]
TABLE_FORM = codec.encoded(TABLE)
STRANGE = next(key for key in range(40) if group(key) not in HELD)


@dataclass(frozen=True)
class Target:
    """A node with a batch open on some state, and a bare connection to it."""

    node: NodeClient
    raw: flight.FlightClient
    ticket: Ticket
    token: str
    pid: int
    address: str

    def picture(self) -> object:
        rows = sorted(encoded(stored(self.node, TABLE, HELD)))
        return replace(self.node.status(sizes=True), busy=0.0), rows

    def options(self, *headers: tuple[bytes, bytes]) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(
            timeout=20, headers=[(b"authorization", f"Bearer {self.token}".encode()), *headers]
        )

    def form(self, op: str, **fields: Any) -> dict[str, Any]:
        """A command for the batch that is open, unless the fields tell another ticket."""
        ticket = codec.encoded(self.ticket)
        return {"v": wire.VERSION, "op": op, "pipeline": PIPELINE, "ticket": ticket, **fields}

    def later(self) -> dict[str, object]:
        """A ticket that may begin."""
        return {**codec.encoded(self.ticket), "batch_id": 1, "attempt": 99}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    with one_node(tmp_path_factory.mktemp("node")) as (running, _):
        yield running


@pytest.fixture(scope="module")
def opened(nodes: LocalNodes) -> Target:
    driver = Driver(connected(nodes), groups=HELD)
    driver.batch(dict.fromkeys(KEYS, 7))
    ticket = driver.begin()
    driver.node.stage(ticket, TABLE.name, 0, written({KEYS[0]: 8}))
    handle = nodes.nodes[0]
    raw = access.client(handle.address, nodes.security)
    return Target(driver.node, raw, ticket, nodes.security.token, handle.pid, handle.address)


@pytest.fixture
def target(opened: Target) -> Iterator[Target]:
    before = opened.picture()
    yield opened
    os.kill(opened.pid, 0)
    assert opened.picture() == before


def put(target: Target, command: bytes, rows: pa.Table, options: Any = None) -> None:
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, _ = target.raw.do_put(descriptor, rows.schema, options or target.options())
    try:
        writer.write_table(rows, max_chunksize=1000)
    finally:
        writer.close()


def exchange(target: Target, command: bytes, rows: pa.Table, options: Any = None) -> pa.Table:
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, reader = target.raw.do_exchange(descriptor, options or target.options())
    with writer:
        writer.begin(rows.schema)
        writer.write_table(rows)
        writer.done_writing()
        return reader.read_all()


def endless(writer: Any, rows: pa.Table) -> None:
    batch = pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in rows.columns], schema=rows.schema
    )
    while True:
        writer.write_batch(batch)
        time.sleep(0.001)


def everywhere(target: Target, command: bytes, options: Any = None) -> Iterator[Callable[[], object]]:
    """A command by every kind of call."""
    how = options or target.options()
    yield lambda: put(target, command, written({KEYS[0]: 1}), how)
    yield lambda: exchange(target, command, probes(KEYS), how)
    yield lambda: target.raw.do_get(flight.Ticket(command), how).read_all()
    for name in ("begin", "prepare", "commit", "release", "status", "x"):
        yield lambda name=name: list(target.raw.do_action(flight.Action(name, command), how))  # type: ignore[misc]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
FIELDS = (
    *("v", "op", "pipeline", "ticket", "table", "groups", "partition", "stats"),
    *("manifest", "watermark", "upto", "group", "sizes", "rows", "more"),
    *("origins", "budget", "batch_id", "since", "first", "size"),
)


@fuzz
@given(noise=st.binary(max_size=300))
def test_random_bytes_are_refused(target: Target, noise: bytes) -> None:
    for call in everywhere(target, noise):
        with pytest.raises(flight.FlightServerError):
            call()


OVER = Ticket(0, 1)
VALID = [
    json.loads(wire.encode(command, PIPELINE))
    for command in (
        wire.Begin(OVER, EMPTY, HELD, None),
        wire.Begin(OVER, EMPTY, HELD, None, {"127.0.0.1:1": HELD}, 1000),
        wire.FetchKeys(TABLE.name, HELD, 0, len(KEYS)),
        wire.FetchDue(TABLE.name, HELD, 0, None, 5),
        wire.FetchRange(TABLE.name, HELD, 0, 0, 1000),
        wire.Release(Ticket(0, 1), HELD),
        wire.Get(OVER, TABLE.name, len(KEYS)),
        wire.Due(OVER, TABLE.name, HELD, 5),
        wire.Scan(OVER, TABLE.name, HELD),
        wire.Stage(OVER, TABLE.name, 1, 1, {"late": 1}),
        wire.Prepare(OVER),
        wire.Commit(OVER, None),
        wire.Status(),
    )
]


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A command of a driver that was replaced, some of its fields missing or holding anything."""
    form = dict(draw(st.sampled_from(VALID)))
    for name in draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=2)):
        if draw(st.booleans()):
            form.pop(name, None)
        elif name == "manifest" and draw(st.booleans()):
            inner = st.dictionaries(st.sampled_from(list(EMPTY.to_json())), anything)
            form[name] = EMPTY.to_json() | draw(inner)
        elif name == "ticket" and draw(st.booleans()):
            inner = st.dictionaries(st.sampled_from(["batch_id", "attempt", "more"]), anything)
            form[name] = codec.encoded(OVER) | draw(inner)
        else:
            form[name] = draw(anything)
    return form


@fuzz
@given(form=mutated())
def test_commands_with_strange_fields_change_nothing(target: Target, form: dict[str, Any]) -> None:
    command = json.dumps(form).encode()
    answered = 0
    for call in everywhere(target, command):
        try:
            call()
        except flight.FlightServerError:
            continue
        answered += 1
    assert not answered or form["op"] in ("status", "fetch_keys", "fetch_due", "fetch_range")


@fuzz
@given(form=mutated(), noise=st.binary(max_size=60))
def test_parsing_raises_nothing_but_state_errors(form: dict[str, Any], noise: bytes) -> None:
    with pytest.raises(StateError):
        decode(noise, PIPELINE)
    with contextlib.suppress(StateError):
        decode(json.dumps(form).encode(), PIPELINE)


tickets = st.builds(Ticket, *[st.integers(0, 2**40)] * 3)
group_sets = st.frozensets(st.integers(0, COUNT - 1))
commands: st.SearchStrategy[wire.Command] = st.one_of(
    st.builds(wire.Get, tickets, st.text(min_size=1), st.integers(0, 2**40)),
    st.builds(wire.Due, tickets, st.text(min_size=1), group_sets, st.integers(-(2**63), 2**63 - 1)),
    st.builds(wire.Scan, tickets, st.text(min_size=1), group_sets),
    st.builds(
        wire.Stage,
        tickets,
        st.text(min_size=1),
        st.integers(0, 999),
        st.integers(0, 2**40),
        st.dictionaries(st.text(min_size=1), st.integers(0, 2**53)),
    ),
    st.builds(wire.Prepare, tickets),
    st.builds(wire.Commit, tickets, st.none() | st.integers(-(2**63), 2**63 - 1)),
    st.builds(wire.Status, st.booleans()),
    st.builds(
        lambda ticket, groups, rows: wire.Begin(
            ticket,
            replace(EMPTY, runs=(RunRef("0-a-1.run", 0, groups, rows, rows),)),
            groups,
            None,
            {f"host-{number}:1": frozenset({number}) for number in groups},
            rows,
        ),
        tickets,
        group_sets,
        st.integers(0, 2**40),
    ),
    st.builds(wire.FetchKeys, st.text(min_size=1), group_sets, st.integers(-1, 2**40), st.integers(0, 2**40)),
    st.builds(
        wire.FetchDue,
        st.text(min_size=1),
        group_sets,
        st.integers(-1, 2**40),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**63), 2**63 - 1),
    ),
    st.builds(
        wire.FetchRange,
        st.text(min_size=1),
        group_sets,
        st.integers(-1, 2**40),
        st.integers(0, 2**64 - 1),
        st.integers(1, 2**40),
    ),
    st.builds(wire.Release, tickets, group_sets),
)


@fuzz
@given(command=commands)
def test_a_command_arrives_as_it_was_sent(command: wire.Command) -> None:
    assert decode(wire.encode(command, PIPELINE), PIPELINE) == command


@pytest.mark.parametrize(
    "change",
    [
        {"groups": "0-99999999999"},
        {"groups": "5-1"},
        {"groups": "1,1"},
        {"groups": "0-15,0-15"},
        {"groups": str(COUNT)},
        {"groups": "-1"},
        {"ticket": {"generation": True}},
        {"ticket": {"generation": -1}},
        {"ticket": {"generation": 2**63}},
        {"ticket": {"batch_id": 1.0}},
        {"ticket": {"more": 1}},
        {"ticket": [1, 1, 99]},
        {"watermark": "5"},
        {"manifest": EMPTY.to_json() | {"groups": 12}},
        {"manifest": EMPTY.to_json() | {"groups": 2**40}},
        {"manifest": EMPTY.to_json() | {"batch_id": 1}},
        {"manifest": EMPTY.to_json() | {"tables": [TABLE_FORM, TABLE_FORM]}},
        {"manifest": EMPTY.to_json() | {"tables": [TABLE_FORM | {"kind": "tree"}]}},
        {"manifest": EMPTY.to_json() | {"tables": [TABLE_FORM | {"keys": "AAAA"}]}},
        {"manifest": EMPTY.to_json() | {"tables": [TABLE_FORM | {"keys": TABLE_FORM["values"]}]}},
        {"manifest": EMPTY.to_json() | {"runs": [{"name": "a.run"}]}},
        {"manifest": EMPTY.to_json() | {"extra": 1}},
        {"more": 1},
        {"origins": []},
        {"origins": {"127.0.0.1:1": [1]}},
        {"origins": {"127.0.0.1:1": ""}},
        {"origins": {"127.0.0.1:1": "8"}},
        {"origins": {"127.0.0.1:1": "0-3", "127.0.0.1:2": "3"}},
        {"origins": {"nowhere": "1"}},
        {"origins": {"http://host/x:1": "1"}},
        {"budget": -1},
        {"budget": 0.5},
        {"budget": None},
    ],
    ids=repr,
)
def test_a_begin_that_makes_no_sense_is_refused(target: Target, change: dict[str, Any]) -> None:
    ticket = target.later()
    form = target.form("begin", groups="0-7", watermark=None, manifest=EMPTY.to_json(), ticket=ticket)
    assert isinstance(decode(json.dumps(form).encode(), PIPELINE), wire.Begin)
    if isinstance(change.get("ticket"), dict):
        change = {"ticket": ticket | change["ticket"]}
    action = flight.Action("begin", json.dumps(form | change).encode())
    with pytest.raises(flight.FlightServerError):
        list(target.raw.do_action(action, target.options()))


def test_a_begin_that_tells_no_origins_is_one_without(target: Target) -> None:
    form = target.form("begin", groups="0-7", watermark=None, manifest=EMPTY.to_json(), ticket=target.later())
    begin = decode(json.dumps(form).encode(), PIPELINE)
    assert isinstance(begin, wire.Begin)
    assert (begin.origins, begin.budget) == ({}, 0)


def test_what_is_not_kept_is_not_given(target: Target) -> None:
    for groups, batch_id in ((HELD, 5), (ALL, 0)):
        with pytest.raises(StaleError, match="not kept here"):
            target.node.fetch_keys(TABLE.name, groups, batch_id, probes(KEYS))
        with pytest.raises(StaleError, match="not kept here"):
            target.node.fetch_due(TABLE.name, groups, batch_id, None, 5)
        with pytest.raises(StaleError, match="not kept here"):
            target.node.fetch_range(TABLE.name, groups, batch_id, 0, 1000)
    with pytest.raises(StateError, match="not held here"):
        target.node.fetch_keys(TABLE.name, frozenset({group(KEYS[0])}), 0, probes(KEYS))
    with pytest.raises(StateError, match="no state table"):
        target.node.fetch_keys("other", HELD, 0, probes(KEYS))
    with pytest.raises(FencedError, match="has taken over"):
        target.node.release(Ticket(0, 1), HELD)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b", "..", ".", "", "a\0b", "x" * 300])
def test_the_name_of_a_run_cannot_lead_out_of_the_log(target: Target, name: str) -> None:
    run = {"name": name, "sequence": 0, "groups": "0-7", "rows": 1, "bytes": 1}
    form = target.form("begin", groups="0-7", watermark=None, ticket=target.later())
    form["manifest"] = EMPTY.to_json() | {"runs": [run]}
    with pytest.raises(flight.FlightServerError, match=r"name"):
        list(target.raw.do_action(flight.Action("begin", json.dumps(form).encode()), target.options()))


@pytest.mark.parametrize("token", [None, b"", b"Bearer ", b"Bearer wrong"])
def test_nothing_is_done_without_the_token(target: Target, token: bytes | None) -> None:
    headers = [] if token is None else [(b"authorization", token)]
    how = flight.FlightCallOptions(timeout=20, headers=headers)
    command = json.dumps(target.form("prepare")).encode()
    calls: list[Callable[[], object]] = [
        *everywhere(target, command, how),
        lambda: list(target.raw.list_actions(how)),
        lambda: list(target.raw.list_flights(options=how)),
        lambda: target.raw.get_flight_info(flight.FlightDescriptor.for_command(command), how),
    ]
    for call in calls:
        with pytest.raises(flight.FlightUnauthenticatedError):
            call()


def test_the_token_twice_is_not_the_token(target: Target) -> None:
    how = target.options((b"authorization", b"Bearer wrong"))
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(target.raw.list_actions(how))


def test_calls_that_a_node_does_not_know_are_refused(target: Target) -> None:
    descriptor = flight.FlightDescriptor.for_path("count-1")
    for call in (
        lambda: list(target.raw.list_flights(options=target.options())),
        lambda: target.raw.get_flight_info(descriptor, target.options()),
        lambda: target.raw.get_schema(descriptor, target.options()),
    ):
        with pytest.raises((flight.FlightError, pa.ArrowNotImplementedError)):
            call()


def test_another_pipeline_and_another_protocol_are_refused(target: Target) -> None:
    for change in ({"pipeline": "other"}, {"v": wire.VERSION + 1}):
        command = json.dumps(target.form("prepare") | change).encode()
        with pytest.raises(flight.FlightServerError, match="is refused"):
            list(target.raw.do_action(flight.Action("prepare", command), target.options()))


def test_a_command_that_is_too_long_is_refused(target: Target) -> None:
    command = json.dumps(target.form("prepare")).encode() + b" " * wire.MAX_COMMAND
    with pytest.raises(flight.FlightServerError, match="at most"):
        list(target.raw.do_action(flight.Action("prepare", command), target.options()))


def test_deeply_nested_json_is_refused(target: Target) -> None:
    for command in (b"[" * 500_000, b'{"v":' * 200_000, b'{"v":' + b"9" * 10_000 + b"}"):
        with pytest.raises(flight.FlightServerError):
            list(target.raw.do_action(flight.Action("prepare", command), target.options()))


good = written({KEYS[0]: 1})
SCHEMAS = {
    "a column less": good.drop_columns(["n"]),
    "a column more": good.append_column("m", good["n"]),
    "another order": good.select(["_hash", "_due", "_gone", "n", "id"]),
    "another type": good.set_column(4, "n", good["n"].cast(pa.float64())),
    "another name": good.rename_columns(["_hash", "_due", "_gone", "id", "m"]),
    "no column": pa.table({}),
    "as read": good.drop_columns(["_gone"]),
    "the other table": BUFFER.written.empty_table(),
}


@pytest.mark.parametrize("rows", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_rows_of_another_schema_are_refused(target: Target, rows: pa.Table) -> None:
    with pytest.raises(StateError, match="were sent, but"):
        target.node.stage(target.ticket, TABLE.name, 1, rows)
    with pytest.raises(StateError, match="were sent, but"):
        target.node.get(target.ticket, TABLE.name, rows)


@pytest.mark.parametrize("column", ["_hash", "_due", "_gone"])
def test_nulls_where_none_may_be_are_refused(target: Target, column: str) -> None:
    place = good.schema.get_field_index(column)
    kind = good.schema.field(place).type
    rows = good.set_column(place, pa.field(column, kind), pa.nulls(1, kind))
    with pytest.raises(StateError, match="has nulls"):
        target.node.stage(target.ticket, TABLE.name, 1, rows)


def test_keys_of_other_nodes_are_refused(target: Target) -> None:
    with pytest.raises(StateError, match="not held here"):
        target.node.stage(target.ticket, TABLE.name, 1, written({KEYS[1]: 1, STRANGE: 1}))
    with pytest.raises(StateError, match="not held here"):
        target.node.get(target.ticket, TABLE.name, probes([KEYS[1], STRANGE]))
    with pytest.raises(StateError, match="not held here"):
        target.node.scan(target.ticket, TABLE.name, ALL)
    with pytest.raises(StateError, match="not held here"):
        target.node.due(target.ticket, TABLE.name, ALL, 5)


def test_unknown_tables_are_refused(target: Target) -> None:
    for request in (
        lambda: target.node.get(target.ticket, "nope", probes(KEYS)),
        lambda: target.node.stage(target.ticket, "nope", 1, good),
        lambda: target.node.scan(target.ticket, "nope", HELD),
    ):
        with pytest.raises(StateError, match="nope"):
            request()


def test_columns_that_lie_about_their_size_are_refused(target: Target) -> None:
    """Offsets of a text column that point outside its data would be read through."""
    offsets = pa.py_buffer(np.array([0, 2**30, 8], np.int32).tobytes())
    data = pa.py_buffer(bytes(2**10))
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    columns = [hashes(KEYS[:2]), pa.array([NEVER, NEVER]), pa.array(KEYS[:2]), text]
    batch = pa.RecordBatch.from_arrays(columns, schema=BUFFER.written)
    descriptor = flight.FlightDescriptor.for_command(
        wire.encode(wire.Stage(target.ticket, BUFFER.name, 1, 2), PIPELINE)
    )
    writer, _ = target.raw.do_put(descriptor, batch.schema, target.options())
    writer.write_batch(batch)
    with pytest.raises(flight.FlightServerError, match="cannot be read"):
        writer.close()


def test_text_that_is_not_utf8_is_refused(target: Target) -> None:
    wrong = pa.array([b"\xff\xfe"]).view(pa.string())
    rows = table_of(BUFFER.written, [hashes([KEYS[0]]), [NEVER], [KEYS[0]], wrong])
    with pytest.raises(StateError, match="cannot be read"):
        target.node.stage(target.ticket, BUFFER.name, 1, rows)


def test_a_stream_without_rows_is_refused(target: Target) -> None:
    command = wire.encode(wire.Get(target.ticket, TABLE.name, 0), PIPELINE)
    writer, reader = target.raw.do_exchange(flight.FlightDescriptor.for_command(command), target.options())
    writer.done_writing()
    with pytest.raises(flight.FlightServerError, match="without rows"):
        reader.read_all()
    with pytest.raises(flight.FlightServerError, match="without rows"):
        writer.close()


@pytest.mark.parametrize("sent", [0, 1, 3])
def test_fewer_or_more_rows_than_announced_are_refused(target: Target, sent: int) -> None:
    rows = written(dict.fromkeys(KEYS[:sent], 1))
    with pytest.raises(flight.FlightServerError, match=f"{sent} of 2 rows came"):
        put(target, wire.encode(wire.Stage(target.ticket, TABLE.name, 1, 2), PIPELINE), rows)
    with pytest.raises(flight.FlightServerError, match=f"{sent} of 2 rows came"):
        exchange(target, wire.encode(wire.Get(target.ticket, TABLE.name, 2), PIPELINE), probes(KEYS[:sent]))


def test_a_task_that_dies_while_it_sends_stages_nothing(target: Target) -> None:
    """The time-out cancels the call; to the node that looks like the end of the rows."""
    stage = wire.encode(wire.Stage(target.ticket, TABLE.name, 1, 10**9), PIPELINE)
    headers = [(b"authorization", f"Bearer {target.token}".encode())]
    hurried = flight.FlightCallOptions(timeout=1.0, headers=headers)
    writer, _ = target.raw.do_put(flight.FlightDescriptor.for_command(stage), good.schema, hurried)
    with pytest.raises(flight.FlightTimedOutError):
        endless(writer, good)
    with pytest.raises(flight.FlightTimedOutError):
        writer.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(min_size=1, max_size=400), http2=st.booleans())
def test_noise_on_the_socket_is_survived(target: Target, noise: bytes, http2: bool) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(target.address.removeprefix(access.SOCKET))
        connection.sendall((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if http2 else b"") + noise)
    assert target.node.status().name


@pytest.fixture
def small(tmp_path: Path) -> Iterator[NodeClient]:
    """A node with limits that a test can reach, in this process."""
    shard = Shard(open_storage(str(tmp_path / "log")), name="small", scratch=tmp_path)
    holder = StateNode(shard, name="small", staged=3000)
    sockets = SocketFolder()
    address = f"{access.SOCKET}{sockets.path()}"
    limits = wire.Limits(command=5000, data=2000, staged=3000)
    service = StateService(holder, pipeline=PIPELINE, security=Security("t"), bind=address, limits=limits)
    client = NodeClient(address, security=Security("t"), pipeline=PIPELINE, timeout=20)
    yield client
    client.close()
    service.shutdown()
    holder.close()
    sockets.close()


def test_requests_with_too_many_rows_are_refused(small: NodeClient) -> None:
    ticket = Driver(small).begin()
    many = dict.fromkeys(range(1000), 1)
    for request in (
        lambda: small.stage(ticket, TABLE.name, 0, written(many)),
        lambda: small.get(ticket, TABLE.name, probes(list(many))),
    ):
        with pytest.raises(StateError, match="more than 2,000 bytes"):
            request()
    assert small.status().staged == 0


def test_a_request_is_cut_off_while_it_comes_in(small: NodeClient) -> None:
    """A stream without end, of messages without rows: the node hangs up by itself."""
    ticket = Driver(small).begin()
    descriptor = flight.FlightDescriptor.for_command(
        wire.encode(wire.Stage(ticket, TABLE.name, 0, 5), PIPELINE)
    )
    writer, _ = small._connection.do_put(descriptor, good.schema, small._options)
    with pytest.raises(flight.FlightServerError, match="more than 2,000 bytes"):
        endless(writer, good.slice(0, 0))
    with pytest.raises(flight.FlightServerError, match="more than 2,000 bytes"):
        writer.close()


def test_what_is_staged_in_all_has_a_limit(small: NodeClient) -> None:
    ticket = Driver(small).begin()
    rows = written(dict.fromkeys(range(40), 1))
    small.stage(ticket, TABLE.name, 0, rows)
    small.stage(ticket, TABLE.name, 0, rows)
    small.stage(ticket, TABLE.name, 1, rows)
    with pytest.raises(StateError, match="use smaller batches"):
        small.stage(ticket, TABLE.name, 2, rows)
    assert set(small.prepare(ticket).tables[TABLE.name]) == {0, 1}


def test_a_manifest_beyond_the_limit_is_refused(small: NodeClient) -> None:
    runs = tuple(RunRef(f"{number}.run", number, ALL, 1, 1) for number in range(100))
    with pytest.raises(StateError, match="at most 5,000"):
        small.begin(wire.Begin(Ticket(1, 100), StateManifest(99, COUNT, None, EMPTY.tables, runs), ALL, None))
    assert small.status().phase == "idle"


def test_state_whose_runs_are_lost_is_an_error_and_not_an_empty_answer(small: NodeClient) -> None:
    ticket = Ticket(Driver(small).generation, 5)
    lost = (RunRef("lost.run", 4, ALL, 10, 1000),)
    small.begin(wire.Begin(ticket, StateManifest(4, COUNT, None, EMPTY.tables, lost), ALL, None))
    with pytest.raises(StateError, match=r"lost\.run"):
        small.get(ticket, TABLE.name, probes(KEYS))
