"""A simulated driver: the real ledger, batch shell, nodes, rescaler and garbage, together as in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.batch.garbage import Garbage
from tidegate.batch.reconciliation import reconcile
from tidegate.batch.shell import Batches
from tidegate.batch.watermark import Watermark
from tidegate.config.settings import StateSettings
from tidegate.errors import ControlError
from tidegate.ledger.ledger import Ledger
from tidegate.rescale.model import STRATEGIES, Ask
from tidegate.rescale.rescaler import Rescaler, RestartRequestedError
from tidegate.rescale.spread import resumed
from tidegate.sim.hosts import Host
from tidegate.sim.nodes import Provider
from tidegate.sim.process import Process, Sequential
from tidegate.sim.spark import GRACES, SOURCE
from tidegate.sim.workload import TABLES
from tidegate.spark.checkpoint_copy import CheckpointCopy
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.state.fleet.nodes import Nodes, name_prefix
from tidegate.state.log.manifest import StateManifest

if TYPE_CHECKING:
    from tidegate.sim.world import World

RETENTION = 2
_TRIES = 3
_TO_SETTLE = 10
"""Batches that a rescale may take in calm weather."""


class Driver(Process):
    """Takes batches through, from wherever the ledger and Spark's checkpoint say."""

    def __init__(self, world: World, number: int, host: Host) -> None:
        super().__init__(f"driver {number}", host)
        self.threads: list[Callable[[], object]] = []
        """What the driver does beside its batches, not begun yet."""
        self.rescaler: Rescaler | None = None
        self.record: CheckpointFiles | CheckpointCopy
        """Where Spark's own record of a batch outlives a crash."""
        self._ledger: Ledger | None = None
        self._provider: Provider | None = None
        self._settled_by = 0
        """The batch at which a rescale that was asked for in calm weather has to be over."""
        self._world = world

    def run(self, upto: int) -> None:
        """Until Spark has committed so many batches, or something is wrong."""
        world = self._world
        settings = StateSettings(key_groups=world.groups, retention=RETENTION)
        known = world.known
        ledger = Ledger(world.records())
        world.step()
        ledger.take_over()
        last = ledger.last
        found = last.batch_id if last else -1
        world.promise(found >= known, f"batch {known} was committed, and the ledger ends with batch {found}")
        self._ledger = ledger
        world.tell(
            f"{self.name} on {self.host.name} takes over as generation {ledger.generation}, "
            f"after batch {found}"
        )
        self.record = world.spark.record(last, ledger.generation)
        reconcile(world.spark.files, last, [SOURCE], check_newest=ledger.check_newest)
        base = last.state if last else None
        if base is None:
            base = StateManifest(-1, world.groups, None, TABLES)
        garbage = Garbage(ledger, world.storage(), RETENTION)
        garbage.recover()
        pool = Sequential(world.rng)
        planned = resumed(
            last.route if last else None,
            world.groups,
            last.configured if last else None,
            nodes=world.first_nodes,
            partitions=world.first_partitions,
        )
        self._provider = provider = Provider(world, self, name_prefix(ledger.generation))
        provider.grow(max(planned.nodes) + 1)
        nodes = Nodes(
            settings,
            provider=provider,
            pipeline="simulated",
            base=base,
            route=planned,
            peers=world.peers,
            connect=world.connect,
            sleep=world.sleep,
            spawn=self.threads.append,
            pool=pool,
        )
        self.rescaler = Rescaler(
            nodes,
            settings,
            fit=lambda slots: None,
            interval=1.0,
            parallelism=world.first_partitions,
            steps=["sum"],
            spawn=self.threads.append,
            clock=world.clock,
        )
        batches = Batches(
            ledger=ledger,
            nodes=nodes,
            watermark=Watermark(GRACES, last.event_times if last else {}),
            garbage=garbage,
            publish=world.sink.publish,
            tries=_TRIES,
            retry_wait=1.0,
            configured=(world.first_nodes, world.first_partitions),
            map=pool.each,
            sleep=world.sleep,
            clock=world.clock,
        )
        batch_id = world.spark.next()
        self._settled_by = upto + _TO_SETTLE
        while batch_id < upto or (
            world.calm and self.rescaler.phase is not None and batch_id < self._settled_by
        ):
            try:
                self._batch(batches, batch_id)
            except RestartRequestedError:
                self.rescaler.restarted()
                continue
            batch_id += 1

    def _batch(self, batches: Batches, batch_id: int) -> None:
        world, rescaler = self._world, self.rescaler
        assert rescaler is not None
        cut = world.spark.cut(batch_id)
        world.step()
        if not batches.is_committed(batch_id):
            rescaler.boundary(batch_id)
        outcome = batches.run(batch_id, {SOURCE: cut}, world.spark.job)
        world.oracle.check_progress(batch_id)
        if world.calm:
            world.spend_a_calm_moment()
        if outcome is not None:
            rescaler.committed(outcome, world.rng.choice((0.2, 0.7, 1.5)))
        world.spark.commit(batch_id)

    def renew(self) -> None:
        """Have its nodes go on."""
        if self._provider is not None and self._ledger is not None:
            self._provider.renew(self._ledger.generation)

    def close(self) -> None:
        """End its nodes, as far as it reaches them."""
        if self._provider is not None:
            self._provider.close()

    @property
    def leaving(self) -> frozenset[int]:
        """Its nodes on hosts that go away."""
        return self._provider.leaving() if self._provider is not None else frozenset()

    def ask(self) -> None:
        """Somebody wants a rescale."""
        world, rescaler = self._world, self.rescaler
        if rescaler is None:
            return
        rng = world.rng
        ask = Ask(nodes=rng.randint(1, 4), parallelism=rng.randint(1, 5), strategy=rng.choice(STRATEGIES))
        if rng.random() < 0.2:
            ask = Ask(kind="rebalance", strategy=rng.choice(STRATEGIES))
        try:
            rescaler.apply(ask)
        except ControlError as error:
            world.tell(f"a rescale is refused: {error}")
            return
        self._settled_by = max(self._settled_by, world.spark.next() + _TO_SETTLE)
        world.counts["rescales"] += 1
        world.tell(f"{self.name} is asked for {ask.kind} to {ask.nodes} nodes, {ask.strategy}")
