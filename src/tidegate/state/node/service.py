"""A state node on the wire: an Arrow Flight server that checks every request in full before it acts.

A single message is in memory before anything here sees it, because Flight does not limit its size. So only
clients that were admitted before can send one, see `tidegate.state.wire.access`. A request of several
messages is counted while it arrives.
"""

from __future__ import annotations

import functools
import hmac
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from tidegate.errors import StateError, TidegateError
from tidegate.state.codec import encoded
from tidegate.state.node.dispatch import dispatch, wanted
from tidegate.state.node.node import StateNode
from tidegate.state.table.table import shown
from tidegate.state.wire.access import SOCKET, Identity, location
from tidegate.state.wire.commands import COMMANDS, Call, Limits, decode, operation
from tidegate.state.wire.flights import batches, to_flight

_log = logging.getLogger(__name__)
_MESSAGE = 256
"""Bytes that a message counts for on top of its rows, so that empty ones have a limit too."""

T = TypeVar("T")


def _answering(method: Callable[..., T]) -> Callable[..., T]:
    """Send errors as the client knows them; the story of an unexpected one goes to the node's log."""

    @functools.wraps(method)
    def answer(*args: Any) -> T:
        try:
            return method(*args)
        except TidegateError as error:
            raise to_flight(error) from error
        except pa.ArrowException as error:
            raise to_flight(StateError(f"a request cannot be read and is refused: {error}")) from error
        except Exception as error:
            _log.exception("a request failed")
            problem = f"{type(error).__name__}: {error}"
            raise to_flight(StateError(f"the node failed: {problem}")) from error

    return answer


class _Guard(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Rejects calls without the token, of any kind, before anything else happens."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> None:
        given = [
            value for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        value = given[0] if len(given) == 1 else ""
        raw = value if isinstance(value, bytes) else value.encode()
        if not hmac.compare_digest(raw, self._wanted):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


class StateService(flight.FlightServerBase):  # type: ignore[misc]
    """Serves a StateNode. Listens from its creation until `shutdown`; `port` tells where."""

    def __init__(
        self,
        node: StateNode,
        *,
        pipeline: str,
        token: str,
        bind: str,
        identity: Identity | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`bind` is unix:PATH, or host:port, where port 0 is any that is free; that needs an `identity`."""
        if not token:
            raise StateError("a state node needs a token: set TIDEGATE_TOKEN")
        self._node = node
        self._pipeline = pipeline
        self._limits = limits or Limits()
        if bind.startswith(SOCKET):
            identity = None
        elif identity is None:
            raise StateError(f"a state node at {bind} needs a certificate: set TIDEGATE_IDENTITY")
        super().__init__(
            location(bind, identity),
            tls_certificates=[(identity.certificate, identity.key)] if identity else None,
            verify_client=identity is not None,
            root_certificates=identity.certificate if identity else None,
            middleware={"guard": _Guard(token)},
        )

    @_answering
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        rows = self._with_rows(descriptor, reader, "exchange")
        writer.begin(rows.schema)
        for batch in batches(rows):
            writer.write_batch(batch)

    @_answering
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._with_rows(descriptor, reader, "put")

    @_answering
    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        rows: Any = dispatch(self._node, self._decoded(ticket.ticket, "get"))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(rows.schema, batches(rows)))

    @_answering
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
