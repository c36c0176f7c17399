"""Other nodes that a node gets state from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol, TypeVar

import pyarrow as pa

from tidegate.errors import StateError, TidegateError
from tidegate.state.table.keys import Groups

_AT_ONCE = 256
"""More than there are nodes to be asked by all requests together, so that none waits for one that hangs."""

T = TypeVar("T")


class Origin(Protocol):
    """A node that has key groups in the state after a batch, and does not change them; see `NodeClient`."""

    def fetch_keys(self, table: str, groups: Groups, batch_id: int, keys: pa.Table) -> pa.Table: ...

    def fetch_due(
        self, table: str, groups: Groups, batch_id: int, since: int | None, upto: int
    ) -> pa.Table: ...

    def fetch_range(
        self, table: str, groups: Groups, batch_id: int, first: int, size: int
    ) -> tuple[pa.Table, int | None]: ...


Connect = Callable[[str], Origin]
"""The node at an address."""


class Peers:
    """Asks several origins at once."""

    def __init__(self, connect: Connect | None, pool: Executor | None = None) -> None:
        self._connect = connect
        # No thread before it is used.
        self._pool = pool or ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ask")

    def ask(self, requests: Sequence[tuple[str, Callable[[Origin], T]]]) -> list[T | TidegateError]:
        """The answers to requests, each to the node at an address, in their order; an error in place of an
        answer that did not come."""
        if len(requests) <= 1:
            return [self._asked(*request) for request in requests]
        return list(self._pool.map(lambda request: self._asked(*request), requests))

    def _asked(self, address: str, request: Callable[[Origin], T]) -> T | TidegateError:
        if self._connect is None:
            return StateError(f"this node cannot ask the one at {address}: it was started without peers")
        try:
            return request(self._connect(address))
        except TidegateError as error:
            return error

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
