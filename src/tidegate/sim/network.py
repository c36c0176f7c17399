"""Calls on their way: lost, held up, doubled and overtaken as the dice say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from tidegate.batch.ticket import Ticket
from tidegate.errors import NodeError
from tidegate.sim.weather import Weather

if TYPE_CHECKING:
    from tidegate.sim.node import Node


class Caller(Protocol):
    """Whoever waits for an answer: a driver or a task."""

    def answered(self, call: Call, answer: object) -> None:
        """Take the answer, or the error in its place."""


@dataclass(eq=False, slots=True)
class Call:
    """A request to a node, and whether its caller still waits."""

    caller: Caller
    node: Node
    action: str
    ticket: Ticket
    body: tuple[Any, ...] = ()
    done: bool = field(default=False)

    def __str__(self) -> str:
        return f"{self.action} for {self.ticket} on {self.node}"


Message: TypeAlias = tuple[Literal["request", "answer", "timeout"], Call, object]


class Network:
    """Messages in any order."""

    def __init__(self, rng: Random, counts: Counter[str], weather: Weather) -> None:
        self._rng = rng
        self._counts = counts
        self.weather = weather
        self.bag: list[Message] = []
        self.late: list[Message] = []
        """Held up for long: past the end of an attempt, a batch, a driver."""

    def send(self, call: Call) -> None:
        self._post(("request", call, None))

    def answer(self, call: Call, answer: object) -> None:
        self._post(("answer", call, answer))

    def lose(self, call: Call) -> None:
        """The caller waits in vain, and gives up after a while."""
        self._counts["lost"] += 1
        self.bag.append(("timeout", call, NodeError("no answer in time", node=str(call.node))))

    def hold(self, message: Message) -> None:
        self._counts["late"] += 1
        self.late.append(message)

    def release(self) -> None:
        """Something that was held up arrives after all."""
        self.bag.append(self.late.pop(self._rng.randrange(len(self.late))))

    def reconnect(self, node: Node) -> None:
        """What was held up on the way to a node arrives at once."""
        self.bag += [message for message in self.late if message[1].node is node]
        self.late = [message for message in self.late if message[1].node is not node]

    def take(self) -> Message:
        """Any message that is on its way."""
        index = self._rng.randrange(len(self.bag))
        self._counts["reordered"] += index > 0
        return self.bag.pop(index)

    def _post(self, message: Message) -> None:
        if self._rng.random() >= self.weather.noise:
            self.bag.append(message)
            return
        fate = self._rng.random() - self.weather.lost
        if fate < 0:
            self.lose(message[1])
        elif fate < self.weather.doubled:
            self._counts["duplicates"] += 1
            self.bag.append(message)
            (self.late if self._rng.random() < 0.5 else self.bag).append(message)
        elif self._rng.random() < 0.7:
            self.hold(message)
        else:  # The caller loses patience, though the message is on its way.
            self.bag.append(message)
            self.lose(message[1])
