"""Who acts in a simulated world, and may die of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tidegate.sim.hosts import Host

T = TypeVar("T")
U = TypeVar("U")


class Process:
    """A driver, a node or a task, on a host."""

    def __init__(self, name: str, host: Host) -> None:
        self.name = name
        self.host = host
        self.dead = False


class DiedError(BaseException):
    """The process in whose code this is raised is no more; it unwinds to whoever runs it."""


class PromiseError(BaseException):
    """A promise was broken. Nothing that is simulated may catch it."""


class Sequential(Executor):
    """What is to be done side by side, one after the other in any order."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
        return iter(self.each(lambda work: fn(*work), list(zip(*iterables, strict=True))))

    def each(self, do: Callable[[T], U], work: Sequence[T]) -> list[U]:
        order = list(range(len(work)))
        self._rng.shuffle(order)
        found = {place: do(work[place]) for place in order}
        return [found[place] for place in range(len(work))]
