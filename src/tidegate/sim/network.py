"""Calls to nodes: lost before or after they are carried out, delayed, repeated and overtaken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.errors import NodeError, StateError, TidegateError
from tidegate.state.node.rwlock import ReadWriteLock

if TYPE_CHECKING:
    from tidegate.sim.nodes import Node
    from tidegate.sim.world import World

_CHANGING = ("begin", "stage", "prepare", "commit", "release")


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
    address: str
    method: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]


class Client:
    """A node as `NodeClient` shows it."""

    def __init__(self, network: Network, address: str) -> None:
        self.address = address
        self._network = network

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._send, method)

    def _send(self, method: str, *args: Any, **named: Any) -> Any:
        return self._network.call(Message(self.address, method, args, named))


class Network:
    """Who listens where, and what is under way."""

    def __init__(self, world: World) -> None:
        self.listening: dict[str, Node] = {}
        self.late: list[Message] = []
        self._world = world

    def call(self, message: Message) -> Any:
        """A request and its answer; NodeError when it or its answer does not come through."""
        world, weather = self._world, self._world.weather
        world.step()
        if world.strikes(weather.lost):
            raise self._lost(message, "is lost")
        if world.strikes(weather.late):
            self._delay(message)
            raise self._lost(message, "is held up")
        if world.strikes(weather.doubled):
            world.tell(f"{message.method} to {message.address} is doubled")
            self._delay(message)
        answer = self.deliver(message)
        world.check_alive()
        if world.strikes(weather.unanswered):
            raise self._lost(message, "is carried out, but its answer is lost")
        return answer

    def deliver(self, message: Message) -> Any:
        node = self.listening.get(message.address)
        if node is None or node.dead:
            raise _away(message.address, "nobody listens there")
        if node.hangs:
            self._delay(message)
            raise _away(message.address, "it hangs")
        try:
            with self._world.acting(node):
                return getattr(node.state, message.method)(*message.args, **message.named)
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
        """One of those that were held up or doubled; nobody waits for an answer."""
        message = self.late.pop(self._world.rng.randrange(len(self.late)))
        try:
            self.deliver(message)
            self._world.tell(f"late {message.method} arrives at {message.address}")
        except TidegateError as error:
            self._world.tell(f"late {message.method} is refused by {message.address}: {error}")

    def _delay(self, message: Message) -> None:
        if message.method in _CHANGING:
            self.late.append(message)

    def _lost(self, message: Message, fate: str) -> NodeError:
        self._world.tell(f"{message.method} to {message.address} {fate}")
        self._world.counts["lost"] += 1
        return _away(message.address, fate)


def _away(address: str, why: str) -> NodeError:
    return NodeError(f"the node at {address} does not answer: {why}", node=address)
