"""A state node as tasks and the driver see it: one method per command, every one with a time-out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
from pyarrow import flight

from tidegate.batch.ticket import Ticket
from tidegate.errors import NodeError
from tidegate.security.security import Security
from tidegate.state.codec import decoded
from tidegate.state.table.keys import Groups
from tidegate.state.wire import access
from tidegate.state.wire import commands as wire
from tidegate.state.wire.commands import NodeStatus, PrepareAnswer
from tidegate.state.wire.flights import batches, from_flight

T = TypeVar("T")


class NodeClient:
    """A connection to one node; may be shared by threads, not by processes.

    Raises what the node raised (FencedError, StaleError, StateError), and NodeError when it does not
    answer within `timeout` seconds or cannot be reached. Every operation may be repeated after a NodeError.
    """

    def __init__(self, address: str, *, security: Security, pipeline: str, timeout: float) -> None:
        """`address` is unix:PATH or host:port."""
        self.address = address
        self._pipeline = pipeline
        self._options = flight.FlightCallOptions(
            timeout=timeout, headers=[(b"authorization", f"Bearer {security.token}".encode())]
        )
        self._connection = access.client(address, security)

    def begin(self, command: wire.Begin) -> None:
        self._send(command)

    def get(self, ticket: Ticket, table: str, keys: pa.Table) -> pa.Table:
        """The rows of these keys before the batch: the table's columns and `_probe`."""
        return self._send(wire.Get(ticket, table, keys.num_rows), keys)

    def due(self, ticket: Ticket, table: str, groups: Groups, upto: int) -> pa.Table:
        """Rows of these groups with `_due` <= `upto`."""
        return self._send(wire.Due(ticket, table, groups, upto))

    def scan(self, ticket: Ticket, table: str, groups: Groups) -> pa.Table:
        """All rows of these groups before the batch."""
        return self._send(wire.Scan(ticket, table, groups))

    def fetch_keys(self, table: str, groups: Groups, batch_id: int, keys: pa.Table) -> pa.Table:
        return self._send(wire.FetchKeys(table, groups, batch_id, keys.num_rows), keys)

    def fetch_due(self, table: str, groups: Groups, batch_id: int, since: int | None, upto: int) -> pa.Table:
        return self._send(wire.FetchDue(table, groups, batch_id, since, upto))

    def fetch_range(
        self, table: str, groups: Groups, batch_id: int, first: int, size: int
    ) -> tuple[pa.Table, int | None]:
        """The rows, and the hash to go on from; None when they are all there are."""
        return wire.unpage(self._send(wire.FetchRange(table, groups, batch_id, first, size)))

    def release(self, ticket: Ticket, groups: Groups) -> None:
        self._send(wire.Release(ticket, groups))

    def stage(
        self,
        ticket: Ticket,
        table: str,
        partition: int,
        rows: pa.Table,
        stats: Mapping[str, int] | None = None,
        nonce: int = 0,
    ) -> None:
        """Bring what a task wrote; it takes the place of what this partition staged for the table before."""
        self._send(wire.Stage(ticket, table, partition, rows.num_rows, stats or {}, nonce), rows)

    def prepare(self, ticket: Ticket) -> PrepareAnswer:
        """Make what was staged durable."""
        return decoded(PrepareAnswer, self._send(wire.Prepare(ticket)))

    def commit(self, ticket: Ticket, watermark: int | None) -> None:
        """Make what was prepared current. `watermark` is that of `begin`."""
        self._send(wire.Commit(ticket, watermark))

    def renew(self, generation: int) -> None:
        """Have the node go on; answered at once, whatever else it is doing."""
        self._send(wire.Renew(generation))

    def status(self, *, sizes: bool = False) -> NodeStatus:
        """Answered at once, whatever else the node is doing; with `sizes` it may have to read."""
        return decoded(NodeStatus, self._send(wire.Status(sizes)))

    def close(self) -> None:
        self._connection.close()

    def _send(self, command: wire.Command, rows: pa.Table | None = None) -> Any:
        """The answer to a command: rows, or JSON values."""
        raw = wire.encode(command, self._pipeline)
        try:
            match command.call:
                case "action":
                    action = flight.Action(wire.operation(type(command)), raw)
                    (answer,) = self._connection.do_action(action, self._options)
                    return json.loads(answer.body.to_pybytes())
                case "get":
                    return self._connection.do_get(flight.Ticket(raw), self._options).read_all()
                case "put":
                    return self._put(flight.FlightDescriptor.for_command(raw), rows)
                case "exchange":
                    return self._exchange(flight.FlightDescriptor.for_command(raw), rows)
        except (flight.FlightError, OSError) as error:
            found = from_flight(error, self.address)
            if isinstance(found, NodeError):
                _forget(self)
            raise found from error

    def _put(self, descriptor: Any, rows: pa.Table) -> None:
        writer, _ = self._connection.do_put(descriptor, rows.schema, self._options)
        # The node's verdict comes with the close, so that is what is raised, even when a write failed before
        # because the node had hung up.
        with closing(writer):
            for batch in batches(rows):
                writer.write_batch(batch)

    def _exchange(self, descriptor: Any, rows: pa.Table) -> pa.Table:
        writer, reader = self._connection.do_exchange(descriptor, self._options)
        with closing(writer):
            writer.begin(rows.schema)
            for batch in batches(rows):
                writer.write_batch(batch)
            writer.done_writing()
            return reader.read_all()


_Place: TypeAlias = tuple[int, str, Security, str, float]
_KEPT = 256
# Used without a lock, which a fork could leave taken for ever: each step is one operation of a dict.
_clients: dict[_Place, NodeClient] = {}


def patiently(client: NodeClient, call: Callable[[NodeClient], T], repeats: int) -> T:
    """What a node answers, asked again so many times while it lives: it may wait for a store that is away."""
    for _ in range(repeats):
        try:
            return call(client)
        except NodeError:
            client.status()
    return call(client)


def client_for(address: str, *, security: Security, pipeline: str, timeout: float) -> NodeClient:
    """A connection that this process keeps: it outlives the task that opened it, and is opened anew after it
    broke. A forked process opens its own."""
    me = os.getpid()
    place = me, address, security, pipeline, timeout
    client = _clients.get(place)
    if client is None:
        opened = NodeClient(address, security=security, pipeline=pipeline, timeout=timeout)
        client = _clients.setdefault(place, opened)
        # A parent's connections stay untouched in a forked process: closing them here could disturb it.
        mine = [known for known in list(_clients) if known[0] == me]
        for old in mine[:-_KEPT]:
            _clients.pop(old, None)
    return client


def _forget(client: NodeClient) -> None:
    """Others may be in the middle of a call, so it is not closed here but with its last user."""
    for place, known in list(_clients.items()):
        if known is client:
            _clients.pop(place, None)
