"""Rescales as a state machine without I/O: events in, instructions out.

    Asked                -> start the nodes that are missing, while batches go on
    Started              -> nothing: the batch that is running comes to its end
    Boundary             -> switch to the new route; with `restart` the query ends and starts again for it
    Committed, none left -> old owners let go, nodes without groups end

Between the switch and the end, state follows the route: batches run, and the next rescale may be asked for
unless one of the two is a `restart`, or the state of an `eager` one is still on its way. What fails before
the switch changes nothing. After it nothing is taken back: the log stands in for an owner that is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.errors import ControlError
from tidegate.rescale.model import Strategy
from tidegate.rescale.route import Route

MigrationPhase = Literal["idle", "starting", "ready", "restarting", "moving"]
_TOLD = 50
"""Events in a story: rescales may follow one another for as long as a pipeline runs."""


@dataclass(frozen=True, slots=True)
class Asked:
    number: int
    route: Route
    strategy: Strategy
    moving: frozenset[int] = frozenset()
    """Nodes that go to another machine, by number."""

    def __str__(self) -> str:
        many = len(self.route.nodes)
        target = f"{many} nodes" if many else f"{self.route.parallelism} partitions"
        return f"rescale {self.number} ({self.strategy}) to {target} was asked for"


@dataclass(frozen=True, slots=True)
class Started:
    """The nodes that were missing listen."""

    def __str__(self) -> str:
        return "its new nodes are up"


@dataclass(frozen=True, slots=True)
class NotStarted:
    why: str

    def __str__(self) -> str:
        return f"its new nodes did not start: {self.why}"


@dataclass(frozen=True, slots=True)
class Boundary:
    """No batch is running."""

    def __str__(self) -> str:
        return "it switched to its route"


@dataclass(frozen=True, slots=True)
class Restarted:
    """The query is about to start again, with nodes that stand nowhere."""

    def __str__(self) -> str:
        return "the query was restarted"


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch is in the ledger."""

    left: int
    """Key groups whose state has not wholly arrived."""

    def __str__(self) -> str:
        return "a batch found all state in place"


Event: TypeAlias = Asked | Started | NotStarted | Boundary | Restarted | Committed


@dataclass(frozen=True, slots=True)
class StartNodes:
    """Have nodes up to this number of them, and others beside those that move, while all go on."""

    count: int
    moving: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Switch:
    """The next batch runs on this route. `hold` it until all state is where it belongs."""

    number: int
    route: Route
    hold: bool


@dataclass(frozen=True, slots=True)
class Restart:
    """End the query, and all nodes; start them again for this route."""

    number: int
    route: Route


@dataclass(frozen=True, slots=True)
class Replaced:
    """A later rescale takes over what this one has not yet moved."""

    number: int


@dataclass(frozen=True, slots=True)
class Settle:
    """All state is where it belongs: old owners let go, and just the first `nodes` stay."""

    number: int
    nodes: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The rescale does not take place; just the first `nodes` stay."""

    number: int
    nodes: int
    why: str


Instruction: TypeAlias = StartNodes | Switch | Restart | Replaced | Settle | GiveUp


class Migration:
    """The rescales of a run, one after the other."""

    def __init__(self, route: Route, *, nodes: int) -> None:
        """`nodes` are there already."""
        self.phase: MigrationPhase = "idle"
        self.route = route
        """The one in force."""
        self._nodes = nodes
        self._before = nodes
        self._asked: Asked | None = None
        self._moving: Asked | None = None
        self.story: list[Event] = []
        """The latest events that changed something since all had settled; `str` gives a line."""

    @property
    def current(self) -> int | None:
        """The number of the rescale that is under way."""
        now = self._asked or self._moving
        return now.number if now else None

    def handle(self, event: Event) -> list[Instruction]:
        """What is to be done. Raises ControlError, changing nothing, for a rescale that cannot begin now."""
        before = self.phase
        instructions = self._handle(event)
        if instructions or self.phase != before:
            self.story = [*(self.story if before != "idle" else ()), event][-_TOLD:]
        return instructions

    def _handle(self, event: Event) -> list[Instruction]:
        match event, self.phase:
            case Asked(), _:
                return self._ask(event)
            case Started(), "starting":
                self.phase = "ready"
            case NotStarted(why), "starting":
                assert self._asked is not None
                number, self._asked = self._asked.number, None
                self.phase = "moving" if self._moving else "idle"
                # Old owners stay as long as state is on its way from them.
                self._nodes = self._before if self._moving else self._needed(self.route)
                return [GiveUp(number, self._nodes, why)]
            case Boundary(), "ready":
                return self._switch()
            case Restarted(), "restarting":
                self.phase = "moving"
            case Committed(0), "moving" | "starting" | "ready" if self._moving is not None:
                return self._settle(self._moving.number)
        return []

    def check(self, strategy: Strategy) -> None:
        """Raise ControlError when a rescale by this strategy cannot begin now."""
        if self._asked is not None or self.phase == "restarting":
            raise ControlError(
                f"rescale {self.current} has not switched to its route yet; try again when it has",
                story=tuple(map(str, self.story)),
            )
        if self._moving is None:
            return
        if strategy == "restart" or self._moving.strategy in ("restart", "eager"):
            raise ControlError(
                f"rescale {self._moving.number} ({self._moving.strategy}) is still moving state, and "
                f"{strategy!r} cannot start before it has settled",
                story=tuple(map(str, self.story)),
            )

    def _ask(self, event: Asked) -> list[Instruction]:
        self.check(event.strategy)
        self._asked = event
        needed = self._needed(event.route)
        if event.strategy == "restart" or (needed <= self._nodes and not event.moving):
            self.phase = "ready"
            return []
        self.phase, self._before, self._nodes = "starting", self._nodes, max(needed, self._nodes)
        return [StartNodes(self._nodes, event.moving)]

    def _switch(self) -> list[Instruction]:
        assert self._asked is not None
        before, now = self._moving, self._asked
        self.route, self._asked, self._moving = now.route, None, now
        if now.strategy == "restart":
            self.phase, self._nodes = "restarting", self._needed(now.route)
            return [Restart(now.number, now.route)]
        self.phase = "moving"
        replaced: list[Instruction] = [Replaced(before.number)] if before else []
        return [*replaced, Switch(now.number, now.route, hold=now.strategy == "eager")]

    def _settle(self, number: int) -> list[Instruction]:
        self._moving = None
        if self._asked is None:
            self.phase = "idle"
            self._nodes = self._needed(self.route)
        return [Settle(number, self._nodes)]

    def _needed(self, route: Route) -> int:
        return max(route.nodes, default=-1) + 1
