"""A state node on the wire: an Arrow Flight server that checks every request in full before it acts.

A single message is in memory before anything here sees it, because Flight does not limit its size. So only
clients that were admitted before can send one, see `tidegate.state.wire.access`. A request of several
messages is counted while it arrives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tidegate.errors import StateError
from tidegate.security.security import Security
from tidegate.state.codec import encoded
from tidegate.state.node.dispatch import dispatch, wanted
from tidegate.state.node.node import StateNode
from tidegate.state.table.table import shown
from tidegate.state.wire.commands import COMMANDS, Call, Limits, decode, operation
from tidegate.state.wire.flights import batches
from tidegate.state.wire.serving import FlightServer, answering

_MESSAGE = 256
"""Bytes that a message counts for on top of its rows, so that empty ones have a limit too."""


class StateService(FlightServer):
    """Serves a StateNode."""

    def __init__(
        self,
        node: StateNode,
        *,
        pipeline: str,
        security: Security,
        bind: str,
        limits: Limits | None = None,
    ) -> None:
        self._node = node
        self._pipeline = pipeline
        self._limits = limits or Limits()
        super().__init__(bind, security)

    @answering
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        rows = self._with_rows(descriptor, reader, "exchange")
        writer.begin(rows.schema)
        for batch in batches(rows):
            writer.write_batch(batch)

    @answering
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._with_rows(descriptor, reader, "put")

    @answering
    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        rows: Any = dispatch(self._node, self._decoded(ticket.ticket, "get"))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(rows.schema, batches(rows)))

    @answering
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        command = self._decoded(memoryview(action.body) if action.body is not None else None, "action")
        if operation(type(command)) != action.type:
            raise StateError(f"action {action.type[:100]!r} does not match its command")
        answer = dispatch(self._node, command)
        return [json.dumps({} if answer is None else encoded(answer)).encode()]

    def list_actions(self, context: Any) -> Iterator[tuple[str, str]]:
        return iter([(name, "see tidegate.state.wire.commands") for name in COMMANDS])

    def _with_rows(self, descriptor: Any, reader: Any, call: Call) -> Any:
        command = self._decoded(descriptor.command, call)
        rows = self._received(reader, wanted(self._node, command), command.rows)
        return dispatch(self._node, command, rows)

    def _decoded(self, raw: bytes | memoryview | None, call: Call) -> Any:
        command = decode(raw or b"", self._pipeline, self._limits.command)
        if command.call != call:
            raise StateError(f"{operation(type(command))!r} must be sent by another kind of call")
        return command

    def _received(self, reader: Any, wanted: pa.Schema, announced: int) -> pa.Table:
        """The rows of a request: all of them, of the schema that is wanted, sound in every byte, within the
        limit."""
        try:
            given = reader.schema
        except OSError as error:
            raise StateError("a request without rows is refused") from error
        if given.names != wanted.names or given.types != wanted.types:
            sent, expected = shown(given)[:400], shown(wanted)[:400]
            raise StateError(f"columns ({sent}) were sent, but ({expected}) are expected")
        found, size = [], 0
        for batch, _ in reader:
            size += _MESSAGE + (batch.nbytes if batch is not None else 0)
            if size > self._limits.data:
                raise StateError(
                    f"a request with more than {self._limits.data:,} bytes of rows is refused; "
                    "use smaller batches or more partitions"
                )
            if batch is not None:
                found.append(_sound(batch, wanted))
        rows = pa.Table.from_batches(found, wanted)
        if rows.num_rows != announced:
            raise StateError(f"a request ended early: {rows.num_rows:,} of {announced:,} rows came")
        return rows


def _sound(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Sizes and offsets from outside cannot be trusted: a wrong one would read foreign memory."""
    batch.validate(full=True)
    for name, field in zip(wanted.names, wanted, strict=True):
        if not field.nullable and batch.column(name).null_count:
            raise StateError(f"column {name!r} has nulls")
    return pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
