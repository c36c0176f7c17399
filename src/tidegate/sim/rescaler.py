"""A simulated driver that is asked for rescales: the thin shell around the real `Migration`.

Its nodes are its own: they end with it, and whoever comes after it begins with what the ledger says.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.batch import protocol
from tidegate.batch.ticket import StagedPart, Ticket
from tidegate.errors import ControlError, StateError
from tidegate.rescale import migration
from tidegate.rescale.migration import Instruction, Migration
from tidegate.rescale.model import STRATEGIES, Strategy
from tidegate.rescale.route import Route, moves
from tidegate.rescale.spread import rebalanced, respread
from tidegate.sim.driver import Driver
from tidegate.sim.durable import check
from tidegate.sim.mover import Mover
from tidegate.sim.network import Call

if TYPE_CHECKING:
    from tidegate.sim.moving import Moving

_WHOLE = 1_000
"""Spans: all of it."""


@dataclass(frozen=True, slots=True)
class _Switch:
    """What is special about the first batch on a new route."""

    origins: Mapping[int, Mapping[int, Mover]] = field(default_factory=dict)
    """New owner -> group -> where its old owner is."""
    losing: frozenset[int] = frozenset()
    """Nodes that own nothing any more: they have to hear of it."""
    hold: bool = False


class Rescaler(Driver):
    """Asked for rescales at any time, between two moves of its own."""

    world: Moving

    def __init__(self, world: Moving, number: int) -> None:
        super().__init__(world, number)
        self.pool: list[Mover] = []
        self.asked: dict[int, Strategy] = {}
        self.ended: dict[int, str] = {}
        """What came of rescales, by number."""
        self.locked = False
        """Whether instructions of a migration are being carried out: nobody else may tell it anything."""
        self.migration: Migration | None = None
        self.switch = _Switch()
        self._budget = 0

    def stop(self, why: str) -> None:
        super().stop(why)
        self._end(self.pool)

    def node(self, name: int) -> Mover:
        return self.pool[name]

    def recover(self) -> None:
        """Start nodes for the route of the last batch: a migration that was under way is over."""
        super().recover()
        last, rng = self.ledger.last, self.world.rng
        groups = self.world.durable.workload.groups
        first = Route.even(groups, nodes=rng.randint(1, 4), partitions=rng.randint(1, 4))
        self.route = last.route if last else first
        self.grow(max(self.route.nodes) + 1)
        self.migration = self.world.cast.migration(self.route, nodes=len(self.pool))

    def _live(self) -> Generator[None]:
        yield from super()._live()
        self.world.check_driver(self)

    # --- what is asked for ---------------------------------------------------------------------------

    @property
    def askable(self) -> bool:
        return self.alive and not self.paused and not self.locked and self.migration is not None

    def ask(self) -> None:
        """Somebody wants a rescale of any kind; it may not be the time for it."""
        machine, rng = self.migration, self.world.rng
        assert machine is not None
        strategy = rng.choice(STRATEGIES)
        before = machine.phase, machine.route, machine.current
        number = max(self.asked, default=0) + 1
        try:
            if strategy == "restart" and not self.world.logged:
                raise ControlError("without a log, state does not outlive a restart")
            machine.check(strategy)
            target = self._target(machine.route)
            self.world.tell("{} is asked for route {} by {}", self, target, strategy)
            self._aside(machine.handle(migration.Asked(number, target, strategy)))
        except ControlError as error:
            self.world.counts["refused"] += 1
            self.world.tell("{} refuses a rescale: {}", self, error)
            after = machine.phase, machine.route, machine.current
            check(after == before, f"a rescale that is refused changes nothing: {before}, {after}")
            return
        self.asked[number] = strategy
        self.world.counts["rescales"] += 1
        self.world.counts[strategy] += 1

    def _target(self, route: Route) -> Route:
        rng = self.world.rng
        load = [rng.choice((0, 0, 1, 3, 20)) for _ in range(route.groups)]
        if rng.random() < 0.3:
            sizes = [rng.randrange(10) for _ in range(route.groups)]
            limit = rng.choice((None, 3, 15))
            target = rebalanced(route, load=load, sizes=sizes, limit=limit)
            moved = sum(sizes[move.group] for move in moves(route, target))
            check(limit is None or moved <= limit, f"a rebalance moves {moved} bytes of {limit}")
            self.world.counts["rebalances"] += target is not route
        else:
            nodes, places = rng.randint(0, min(6, route.groups)), rng.randint(1, 6)
            target = respread(route, nodes=nodes, partitions=places, load=rng.choice((None, load)))
        if target is route:
            raise ControlError("nothing to change")
        return target

    def started(self, problem: str | None) -> None:
        """The nodes that were missing listen, or do not start."""
        assert self.migration is not None
        event = migration.Started() if problem is None else migration.NotStarted(problem)
        self._aside(self.migration.handle(event))

    def _aside(self, instructions: list[Instruction]) -> None:
        """While batches go on."""
        for instruction in instructions:
            self.world.tell("{} carries out {}", self, instruction)
            match instruction:
                case migration.StartNodes(count):
                    self.world.start_nodes(self, count)
                case migration.GiveUp(number, nodes, _):
                    self._finish(number, "given up")
                    self.shrink(nodes)
                case _:
                    check(False, f"{instruction} comes while a batch may be running")

    # --- between two batches -------------------------------------------------------------------------

    def bound(self, batch_id: int, *, committed: bool) -> Generator[None]:
        assert self.migration is not None
        # In peace there is time between two batches; else the next one may come at once.
        while not self.world.noisy and any(node.pullable or node.pulling for node in self.pool):
            yield
        if not committed:
            yield from self._carry_out_all(self.migration.handle(migration.Boundary()), batch_id)
        self._route = self.route
        self._budget = self._allowed()

    def through(self, batch_id: int) -> Generator[None]:
        assert self.migration is not None
        ticket = self._protocol.ticket
        receipts = [self._receipts.get((ticket, name)) for name in self._route.nodes]
        if None in receipts:  # The batch was in the ledger before: nobody prepared anything.
            return
        left = sum(receipt.left for receipt in receipts if receipt is not None)
        yield from self._carry_out_all(self.migration.handle(migration.Committed(left)), batch_id)

    def _allowed(self) -> int:
        """Spans that a node may bring over in the background during the next batch."""
        number = self.migration.current if self.migration else None
        if number is None or self.asked.get(number) == "lazy":
            return 0
        return self.world.rng.randint(1, 6) if self.world.noisy else _WHOLE

    def _carry_out_all(self, instructions: list[Instruction], batch_id: int) -> Generator[None]:
        self.locked = True
        for instruction in instructions:
            yield
            self.world.tell("{} carries out {}", self, instruction)
            yield from self._between(instruction, batch_id)
        self.locked = False

    def _between(self, instruction: Instruction, batch_id: int) -> Generator[None]:
        match instruction:
            case migration.Switch(_, route, hold):
                self.turn(route, hold=hold)
            case migration.Restart(_, route):
                yield from self._restart(route)
            case migration.Replaced(number):
                self._finish(number, "replaced")
            case migration.Settle(number, nodes):
                self.world.check_settled(self)
                self._finish(number, "settled")
                yield from self.let_go(batch_id)
                self.shrink(nodes)

    def turn(self, route: Route, *, hold: bool) -> None:
        """The next batch runs on another route."""
        origins: dict[int, dict[int, Mover]] = {}
        for move in moves(self.route, route) if self.world.peers else ():
            origins.setdefault(move.target, {})[move.group] = self.pool[move.source]
        self.switch = _Switch(origins, frozenset(self.route.nodes) - frozenset(route.nodes), hold)
        self.route = route

    def _restart(self, route: Route) -> Generator[None]:
        """The query ends, and all nodes; both start again."""
        assert self.migration is not None
        self._end(self.pool)
        self.pool = []
        yield
        if self.world.rng.random() < self.world.weather.failing:
            raise StateError("the nodes of another route did not start")
        self.grow(max(route.nodes) + 1)
        self.route, self.switch = route, _Switch()
        yield
        more = self.migration.handle(migration.Restarted()) + self.migration.handle(migration.Boundary())
        check(not more, f"after a restart there is nothing to do but {more}")

    def let_go(self, batch_id: int) -> Generator[None]:
        """All state is where it belongs: nobody asks its old owners for what they had before this batch."""
        for name in range(len(self.pool)) if self.world.peers else ():
            self._call("release", Ticket(self.ledger.generation, batch_id), name)
            yield

    def _finish(self, number: int, how: str) -> None:
        check(number in self.asked, f"rescale {number} is {how}, but nobody asked for it")
        check(number not in self.ended, f"rescale {number} is {how} after it was {self.ended.get(number)}")
        self.ended[number] = how
        self.world.counts[how] += 1

    # --- nodes ---------------------------------------------------------------------------------------

    def grow(self, count: int) -> None:
        while len(self.pool) < count:
            self.pool.append(self.world.place(len(self.pool)))

    def shrink(self, count: int) -> None:
        leaving, self.pool = self.pool[count:], self.pool[:count]
        if leaving:
            self.world.tell("{} ends {}", self, tuple(map(str, leaving)))
        self.world.check_leaving(self, leaving)
        self._end(leaving)

    def _end(self, nodes: list[Mover]) -> None:
        for node in nodes:
            self.world.end(node)

    def heal(self, ticket: Ticket) -> None:
        for name in range(len(self.pool)):
            self._call("abort", ticket, name)
            if self.world.seems_dead(self.pool[name]):
                self.pool[name] = self.world.place(name)
                self.world.counts["replacements"] += 1

    # --- batches -------------------------------------------------------------------------------------

    def expected(self) -> dict[int, frozenset[StagedPart]]:
        return {name: self.parts_of(name) for name in sorted({*self._route.nodes, *self.switch.losing})}

    def beginning(self, name: int) -> tuple[object, ...]:
        origins = self.switch.origins.get(name, {})
        return (*super().beginning(name), origins, _WHOLE if self.switch.hold else self._budget)

    def _append(self, ticket: Ticket) -> None:
        super()._append(ticket)
        self.switch = _Switch()

    def _event(self, call: Call, answer: object) -> protocol.Event | None:
        if call.action == "release":
            return None
        waits = call.action == "begin" and self.switch.hold and isinstance(answer, int) and answer > 0
        if waits and call.ticket == self._protocol.ticket:
            # Begun again, so that an origin that did not answer is asked once more.
            self._call("begin", call.ticket, call.node.name, *call.body)
            return None
        return super()._event(call, answer)

    def _call(self, action: str, ticket: Ticket, node: int, *body: object) -> None:
        if node < len(self.pool):  # Else it has ended, and its part with it.
            super()._call(action, ticket, node, *body)
