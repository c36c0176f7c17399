"""Rescales of a run: the migration's shell. Routes are planned, nodes started, state watched on its way."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from tidegate.batch.outcome import Outcome
from tidegate.config.settings import StateSettings as Settings
from tidegate.errors import ControlError, TidegateError
from tidegate.rescale import migration
from tidegate.rescale.history import History
from tidegate.rescale.migration import Instruction, Migration
from tidegate.rescale.model import Ask, MoveLine, PlanView, Rescale, RescalePhase, Strategy
from tidegate.rescale.pace import Pace
from tidegate.rescale.route import Route, moves
from tidegate.rescale.spread import rebalanced, respread, share
from tidegate.state.fleet.nodes import Nodes, in_background
from tidegate.state.fleet.stateless import Stateless
from tidegate.state.table.keys import show_groups
from tidegate.units import size

log = logging.getLogger(__name__)

_LEAST = 256 << 10
"""Bytes that come over in the background during a batch however busy the machine is: it has to end."""
_LAZY = 100
"""Batches after a `lazy` switch in which keys move only when they are needed. Then the rest follows: its old
owners are not to be kept for ever."""


class RestartRequestedError(Exception):
    """Ends the query before a batch whose route needs a new one."""


class Rescaler:
    """Plans and carries out rescales. `plan` and `apply` may be called from any thread, the others by the one
    that runs batches."""

    def __init__(
        self,
        nodes: Nodes | Stateless,
        settings: Settings,
        *,
        fit: Callable[[int], object],
        retain: Callable[[int], object] = lambda partitions: None,
        interval: float,
        parallelism: int,
        steps: Sequence[str],
        history: History | None = None,
        spawn: Callable[[Callable[[], None]], object] = in_background,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`fit` has Spark work on so many partitions at a time, as far as its cluster can; `retain` is told
        so before, so that state can move away from machines that are going. `parallelism` is what was asked
        for; the route may have a little more, to come out even. `spawn` runs what no batch is to wait for
        (starting nodes, fitting the cluster) and must not run it before it returns; `clock` gives seconds
        since 1970."""
        self.history = history or History()
        self._nodes = nodes
        self._fit, self._retain = fit, retain
        self._settings = settings
        self._interval = interval
        self._parallelism = parallelism
        self._steps = tuple(steps)
        self._migration = Migration(nodes.route, nodes=len(nodes.handles))
        self._change = threading.Lock()
        self._pace: Pace | None = None
        self._limit = interval
        self._lazy = 0
        """Batches until the state that nobody asked for follows; 0 when it does, or there is none."""
        self._seconds: deque[float] = deque(maxlen=20)
        self._restart: Route | None = None
        self._stuck: frozenset[int] = frozenset()
        """Nodes that could not move away from machines that are going."""
        self._spawn = spawn
        self._clock = clock

    @property
    def phase(self) -> RescalePhase | None:
        """Of the rescale that is under way; None without one."""
        number = self._migration.current
        return self.history.get(number).phase if number is not None else None

    def plan(self, ask: Ask) -> PlanView:
        """What a rescale would do. Raises ControlError for an invalid one."""
        before, after = self._migration.route, self._target(ask)
        load, sizes = self._nodes.load, self._nodes.sizes()
        total = float(load.sum()) or 1.0
        found: dict[tuple[int, int], list[int]] = {}
        for move in moves(before, after):
            found.setdefault((move.source, move.target), []).append(move.group)
        lines = tuple(
            MoveLine(
                source=source,
                target=target,
                groups=show_groups(frozenset(groups)),
                rows=sum(sizes.get(group, (0, 0))[0] for group in groups),
                bytes=sum(sizes.get(group, (0, 0))[1] for group in groups),
                load=float(load[groups].sum()) / total,
            )
            for (source, target), groups in sorted(found.items())
        )
        strategy = self._strategy(ask)
        return PlanView(
            ask=ask,
            strategy=strategy,
            nodes=(len(before.nodes), len(after.nodes)),
            parallelism=(before.parallelism, after.parallelism),
            moves=lines,
            groups_moved=sum(map(len, found.values())),
            bytes_moved=sum(line.bytes for line in lines) if self._nodes.peers else 0,
            busiest=(max(share(before, load), default=0.0), max(share(after, load), default=0.0)),
            note=self._note(strategy),
        )

    def apply(self, ask: Ask) -> Rescale:
        """Set a rescale going."""
        strategy = self._strategy(ask)
        self._migration.check(strategy)
        # Planning may ask nodes for sizes: no batch has to wait for that.
        before, after = self._migration.route, self._target(ask)
        if after.parallelism == before.parallelism:
            return self._accept(ask, strategy, before, after)
        self._retain(after.parallelism)
        try:
            return self._accept(ask, strategy, before, after)
        except ControlError:
            self._retain(before.parallelism)
            raise

    def _accept(self, ask: Ask, strategy: Strategy, before: Route, after: Route) -> Rescale:
        moving = frozenset[int]() if strategy == "restart" else self._nodes.leaving(now=True)
        moving &= frozenset(after.nodes)
        with self._change:
            if self._migration.route is not before:
                raise ControlError("the route changed while this was being planned; try again")
            instructions = self._migration.handle(
                migration.Asked(self.history.next_number, after, strategy, moving)
            )
            self._parallelism = ask.parallelism or self._parallelism
            record = self.history.asked(
                ask,
                strategy,
                now=self._clock(),
                nodes=(len(before.nodes), len(after.nodes)),
                parallelism=(before.parallelism, after.parallelism),
                groups=len(moves(before, after)),
            )
            self._do(instructions)
            if after.parallelism > before.parallelism:
                self.follow(after.parallelism)
        return record

    def boundary(self, batch_id: int) -> None:
        """No batch is running and this one is next. Raises RestartRequestedError when it has to wait for
        another query."""
        with self._change:
            for instruction in self._migration.handle(migration.Boundary()):
                match instruction:
                    case migration.Switch(number, route, hold):
                        self._switch(number, route, batch_id, hold=hold)
                    case migration.Restart(number, route):
                        self.history.switched(number, batch_id, hold=True)
                        self._restart = route
                        raise RestartRequestedError
                    case _:
                        self._do([instruction])

    def restarted(self) -> bool:
        """Between two queries: whether one ended for a rescale. Then the nodes of its route are there."""
        if self._restart is None:
            return False
        self._nodes.restart(self._restart)
        self._restart = None
        with self._change:
            self._do(self._migration.handle(migration.Restarted()))
        return True

    def committed(self, outcome: Outcome, seconds: float) -> None:
        """A batch is through; it took so long."""
        arrived = outcome.arrived
        with self._change:
            self.history.batch(outcome)
            self._do(self._migration.handle(migration.Committed(arrived.groups_left)))
            if self._pace is None:
                self._seconds.append(seconds)
                self._wait_for_lazy()
            else:
                used = arrived.background.bytes >= self._nodes.budget // 2
                self._nodes.budget = self._pace.next(seconds, self._limit, used)
        self._drain()

    def _drain(self) -> None:
        """Move nodes away from machines that are going, unless that has failed since others were."""
        leaving = self._nodes.leaving()
        if not leaving or leaving == self._stuck or self._migration.current is not None:
            return
        try:
            self.apply(Ask(kind="drain"))
        except ControlError as error:
            log.info("nodes cannot move away from machines that are going yet: %s", error)

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case migration.StartNodes(count, moving):
                    self._spawn(partial(self._grow, count, moving))
                case migration.Replaced(number):
                    self.history.ended(number, "replaced")
                case migration.Settle(number, nodes):
                    self._settle(number, nodes)
                case migration.GiveUp(number, nodes, why):
                    self._nodes.cancel(nodes)
                    self._retain(self._migration.route.parallelism)
                    story = "; ".join(map(str, self._migration.story[:-1]))
                    self.history.ended(number, "failed", f"{why} (before that: {story})")

    def follow(self, parallelism: int) -> None:
        """Compute follows the route: executors come before they are needed, and leave when they are not."""

        def fit() -> None:
            try:
                self._fit(parallelism)
            except Exception as error:  # Batches run all the same, on what there is.
                log.warning("the cluster could not be adapted to %d partitions: %s", parallelism, error)

        self._spawn(fit)

    def _grow(self, count: int, moving: frozenset[int]) -> None:
        event: migration.Event = migration.Started()
        self._stuck = moving
        try:
            self._nodes.grow(count)
            self._nodes.stand_in(moving)
            self._stuck = frozenset()
        except (TidegateError, OSError) as error:
            log.warning("no rescale: %s", error)
            event = migration.NotStarted(str(error))
        with self._change:
            self._do(self._migration.handle(event))

    def _switch(self, number: int, route: Route, batch_id: int, *, hold: bool) -> None:
        self._nodes.switch(route, hold=hold)
        record = self.history.switched(number, batch_id, hold=hold)
        log.info("rescale %d: batch %d runs on route %d", number, batch_id, route.version)
        self._nodes.budget, self._pace, self._lazy = 0, None, 0
        if record.strategy == "hybrid" and self._nodes.peers:
            self._set_pace()
        elif record.strategy == "lazy" and self._nodes.peers:
            self._lazy = _LAZY

    def _set_pace(self) -> None:
        """From now on state comes over in the background."""
        most = size(self._settings.transfer_rate)
        self._pace = Pace(start=most // 8, floor=min(_LEAST, most), ceiling=most)
        self._nodes.budget = self._pace.budget
        # Batches that take longer than the interval as it is are not to take much longer than they did.
        usual = median(self._seconds) if self._seconds else 0.0
        self._limit = max(self._interval, 1.25 * usual)

    def _wait_for_lazy(self) -> None:
        if self._lazy:
            self._lazy -= 1
            if not self._lazy:
                self._set_pace()

    def _settle(self, number: int, nodes: int) -> None:
        self._nodes.shrink(nodes)
        if self._nodes.peers:
            self._nodes.let_go()
        self._nodes.budget, self._pace, self._lazy = 0, None, 0
        record = self.history.settled(number, now=self._clock())
        if record.parallelism[1] < record.parallelism[0]:
            self.follow(self._migration.route.parallelism)
        log.info("rescale %d settled after %.1f s", number, record.seconds_to_settled or 0.0)

    def _strategy(self, ask: Ask) -> Strategy:
        return ask.strategy or self._settings.strategy

    def _target(self, ask: Ask) -> Route:
        """The route that is asked for."""
        if (problem := ask.problem) is not None:
            raise ControlError(problem)
        if self._strategy(ask) == "restart" and not self._nodes.durable:
            raise ControlError("without a durable log (state.durable) a restart would lose all state")
        route = self._migration.route
        if not route.groups and (ask.kind == "rebalance" or ask.nodes is not None or ask.step):
            raise ControlError(
                "the pipeline has no keyed step, so there are no state nodes and no state to move; only its "
                "parallelism can be changed"
            )
        if ask.step is not None and ask.step not in self._steps:
            raise ControlError(f"there is no keyed step {ask.step!r}, only {', '.join(self._steps)}")
        load = self._nodes.load
        if ask.kind == "drain":
            if not self._nodes.leaving(now=True):
                raise ControlError("no node is on a machine that is going away")
            return replace(route, version=route.version + 1)
        if ask.kind == "rebalance":
            known = self._nodes.sizes()
            sizes = [known.get(group, (0, 0))[1] for group in range(route.groups)]
            target = rebalanced(route, load=load.tolist(), sizes=sizes, limit=ask.bytes)
            if target is route:
                raise ControlError("nothing to gain: no move within the limit relieves the busiest node")
            return target
        target = respread(
            route,
            nodes=len(route.nodes) if ask.nodes is None else ask.nodes,
            partitions=self._parallelism if ask.parallelism is None else ask.parallelism,
            load=load.tolist() if load.any() else None,
        )
        if target is route:
            nodes = f"{len(route.nodes)} nodes and " if route.groups else ""
            raise ControlError(f"nothing to change: there are {nodes}{route.parallelism} partitions")
        return target

    def _note(self, strategy: Strategy) -> str:
        if not self._migration.route.groups:
            again = "the query stops and starts again" if strategy == "restart" else "no batch waits"
            return f"{again}; sources are read in that many partitions from one of the next two batches on"
        if strategy == "restart":
            return "the query stops; it starts again with new nodes, which read their state from the log"
        if not self._nodes.peers:
            return "no bytes move: new owners read the runs of the log, which is a local folder"
        return {
            "eager": "the next batch waits until all of this has moved",
            "lazy": f"no pause: a key moves when a batch needs it; after {_LAZY} batches the rest follows",
            "hybrid": "no pause: a key moves when a batch needs it, and the rest in the background",
        }[strategy]
