"""What a simulated node does for which it has to ask other nodes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tidegate.errors import TidegateError
from tidegate.sim.network import Call

if TYPE_CHECKING:
    from tidegate.sim.moving import Moving
    from tidegate.sim.node import Node

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """A question to another node."""

    node: Node
    action: str
    body: tuple[Any, ...]


Work: TypeAlias = Generator[Request, object, T]
"""Asks as it goes on, and gets the answers, or errors in their place."""


class Errand:
    """Work of a node, for a call or in the background. It ends with the process that it began in."""

    def __init__(self, world: Moving, node: Node, work: Work[object], call: Call | None) -> None:
        self.node = node
        self.call = call
        self._world = world
        self._process = node.process
        self._work = work

    @property
    def alive(self) -> bool:
        return self.node.alive and self.node.process == self._process

    def answered(self, call: Call, answer: object) -> None:
        if self.alive:
            self._world.counts["unanswered"] += isinstance(answer, TidegateError)
            self.go_on(answer)

    def go_on(self, answer: object = None) -> None:
        """To the next question, or the end."""
        result: object
        try:
            request = self._work.send(answer)
        except StopIteration as end:
            result = end.value
        except TidegateError as error:
            result = error
        else:
            call = Call(self, request.node, request.action, self.node.fence.ticket, request.body)
            self._world.counts["asked"] += 1
            self._world.counts["chained"] += self.call is not None and self.call.action in ("take", "span")
            self._world.network.send(call)
            return
        self._world.errands.remove(self)
        if self.call is not None:
            self._world.reply(self.call, result)
