"""Calls to nodes: lost before or after they are carried out, delayed, repeated and overtaken, and held up by
links that are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.errors import NodeError, StateError, TidegateError
from tidegate.state.codec import encoded
from tidegate.state.node.dispatch import dispatch, wanted
from tidegate.state.node.rwlock import ReadWriteLock
from tidegate.state.wire import commands as wire
from tidegate.state.wire.client import NodeClient

if TYPE_CHECKING:
    from tidegate.sim.nodes import Node
    from tidegate.sim.world import World

_PIPELINE = "simulated"
_CHANGING = ("begin", "stage", "prepare", "commit", "release", "renew")
_KEPT = 0.3
"""Chance that a request is still on its way when a cut link heals."""


class WouldBlockError(BaseException):
    """A request would wait for another one at the same node."""


class Lock(ReadWriteLock):
    """There is one thread, so nobody can wait: whoever would is sent away."""

    @contextmanager
    def shared(self) -> Iterator[None]:
        if self._exclusive:
            raise WouldBlockError
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        if self._exclusive or self._readers:
            raise WouldBlockError
        self._exclusive = True
        try:
            yield
        finally:
            self._exclusive = False

    def busy(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """A command as it is sent, and the rows that come with it."""

    sender: str
    """The host that it comes from."""
    address: str
    operation: str
    raw: bytes
    rows: pa.Table | None

    @property
    def host(self) -> str:
        """Where it goes to."""
        return self.address.partition(":")[0]


class Client(NodeClient):
    """The real client but for its connection."""

    def __init__(self, network: Network, address: str) -> None:
        self.address = address
        self._network = network

    def _send(self, command: wire.Command, rows: pa.Table | None = None) -> Any:
        raw = wire.encode(command, _PIPELINE)
        return self._network.call(self.address, wire.operation(type(command)), raw, rows)


class Network:
    """Who listens where, and what is under way."""

    def __init__(self, world: World) -> None:
        self.listening: dict[str, Node] = {}
        self.late: list[Message] = []
        self._world = world

    def call(self, address: str, operation: str, raw: bytes, rows: pa.Table | None) -> Any:
        """A request and its answer; NodeError when it or its answer does not come through."""
        world, weather, links = self._world, self._world.weather, self._world.links
        message = Message(world.here.name, address, operation, raw, rows)
        world.step()
        if not links.carries(message.sender, message.host):
            if world.strikes(_KEPT):
                self._delay(message)
            raise self._lost(message, "does not come through")
        if world.strikes(weather.lost):
            raise self._lost(message, "is lost")
        if world.strikes(weather.late):
            self._delay(message)
            raise self._lost(message, "is held up")
        if world.strikes(weather.doubled):
            world.tell(f"{message.operation} to {message.address} is doubled")
            self._delay(message)
        answer = self.deliver(message)
        world.check_alive()
        if world.strikes(weather.unanswered) or not links.carries(message.host, message.sender):
            raise self._lost(message, "is carried out, but its answer is lost")
        return answer

    def deliver(self, message: Message) -> Any:
        node = self.listening.get(message.address)
        if node is None or node.dead or self._world.gives_up(node):
            raise _away(message.address, "nobody listens there")
        if node.hangs:
            self._delay(message)
            raise _away(message.address, "it hangs")
        try:
            with self._world.acting(node):
                return _carried_out(node, message)
        except WouldBlockError:
            self._delay(message)
            raise _away(message.address, "it does not answer in time") from None
        except self._world.died:
            raise _away(message.address, "it has died") from None
        except TidegateError:
            raise
        except OSError as error:
            raise StateError(f"the node could not do it: {error}") from error

    def deliver_late(self) -> None:
        """One of those that were held up or doubled, if the link is there; nobody waits for an answer."""
        message = self.late.pop(self._world.rng.randrange(len(self.late)))
        if not self._world.links.carries(message.sender, message.host):
            self.late.append(message)
            return
        self._world.counts["late"] += 1
        try:
            self.deliver(message)
            self._world.tell(f"late {message.operation} arrives at {message.address}")
        except TidegateError as error:
            self._world.tell(f"late {message.operation} is refused by {message.address}: {error}")

    def _delay(self, message: Message) -> None:
        if message.operation in _CHANGING:
            self.late.append(message)

    def _lost(self, message: Message, fate: str) -> NodeError:
        self._world.tell(f"{message.operation} to {message.address} {fate}")
        self._world.counts["lost"] += 1
        return _away(message.address, fate)


def _carried_out(node: Node, message: Message) -> Any:
    """The answer as it is received: rows, or JSON values."""
    command: Any = wire.decode(message.raw, _PIPELINE)
    node.arrived(command)
    if message.rows is not None:
        assert message.rows.schema.equals(wanted(node.state, command))
        assert message.rows.num_rows == command.rows
    answer: Any = dispatch(node.state, command, message.rows)
    node.accepted(command)
    if isinstance(answer, pa.Table):
        return answer
    return json.loads(json.dumps({} if answer is None else encoded(answer)))


def _away(address: str, why: str) -> NodeError:
    return NodeError(f"the node at {address} does not answer: {why}", node=address)
