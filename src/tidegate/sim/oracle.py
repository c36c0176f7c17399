"""What must hold in a simulated world: whenever a batch is through, and at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut
from tidegate.sim.driver import RETENTION, Driver
from tidegate.sim.spark import SOURCE
from tidegate.sim.workload import ROWS, SUMS
from tidegate.state.node.shard import Shard
from tidegate.state.table.table import DUE

if TYPE_CHECKING:
    from tidegate.sim.world import World


class Oracle:
    """Sees everything: what is on a disk or in the store, whatever links are cut."""

    def __init__(self, world: World) -> None:
        self._world = world

    def check_committed(self, batch_id: int, attempt: str) -> Cut | None:
        """What becomes visible is in the ledger, with that attempt. The cut of the batch, unless it has been
        forgotten since."""
        world = self._world
        for record in self._entries():
            if record["batch_id"] == batch_id:
                shown = [receipt["attempt"] for receipt in record["receipts"].values()]
                world.promise(shown == [attempt], f"{attempt} is published, and {shown} committed")
                world.known = max(world.known, batch_id)
                return Cut(**record["cut"][SOURCE])
        # It may have been forgotten since, when the one who publishes was held up.
        forgotten = batch_id <= world.known - RETENTION
        world.promise(forgotten, f"batch {batch_id} is published and not committed")
        return None

    def check_progress(self, batch_id: int) -> None:
        """A driver is through with a batch."""
        world = self._world
        world.promise(batch_id in world.sink.visible, f"batch {batch_id} is through and was not published")
        world.known = max(world.known, batch_id)
        world.counts["batches"] += 1
        there = world.runs()
        for record in self._entries()[:RETENTION]:
            gone = {run["name"] for run in record["state"]["runs"]} - there
            world.promise(not gone, f"batch {record['batch_id']} needs runs that were deleted: {gone}")

    def check_settled(self, driver: Driver) -> None:
        """A driver has ended well."""
        rescaler = driver.rescaler
        if self._world.calm and rescaler is not None and rescaler.phase is not None:
            current = rescaler.history.all()[-1]
            self._world.promise(current.strategy == "lazy", f"rescale {current} does not settle")
        elif self._world.calm:
            self._world.promise(
                not driver.leaving, f"nodes {sorted(driver.leaving)} have not left their hosts"
            )

    def check_nothing_is_left(self) -> None:
        """In the log, once a driver has started."""
        world = self._world
        needed = {run["name"] for record in self._entries()[:RETENTION] for run in record["state"]["runs"]}
        left = set(world.storage().names()) - needed
        world.promise(not left, f"runs that nobody needs are left: {sorted(left)}")

    def check_states(self) -> None:
        """The state after each batch within the retention can be read, from the log alone, and is right."""
        world = self._world
        entries = list(Ledger(world.records()).entries())
        world.promise(len(entries) >= RETENTION, f"the ledger has {len(entries)} batches left")
        every = frozenset(range(world.groups))
        for entry in entries[:RETENTION]:
            shard = Shard(world.storage(), name="reader", scratch=world.here.scratch)
            assert entry.state is not None
            shard.begin(entry.state, every)
            sums, rows = shard.scan(SUMS.name, every), shard.scan(ROWS.name, every)
            found = (
                sorted(zip(sums["key"].to_pylist(), sums["total"].to_pylist(), strict=True)),
                sorted(zip(*(rows[name].to_pylist() for name in ("key", "value", DUE)), strict=True)),
            )
            wanted = world.spark.model(entry.batch_id).state
            world.promise(found == wanted, f"state after batch {entry.batch_id} is {found}, not {wanted}")
            shard.close()
        published = set(world.sink.visible) == set(range(world.known + 1))
        world.promise(published, "some batches were never published")

    def _records(self) -> Iterator[dict[str, Any]]:
        """Newest first, without a gap: what a power cut has brought back of earlier ones does not count."""
        files, after = self._world.ledger_files(), None
        for name in sorted(files, reverse=True):
            number, _, kind = name.partition(".")
            if kind == "json" and number:
                if after not in (None, int(number) + 1):
                    return
                after = int(number)
                yield json.loads(files[name])

    def _entries(self) -> list[dict[str, Any]]:
        """The committed batches as they are on record, newest first. Each is of the driver that had taken
        over last."""
        found: list[dict[str, Any]] = []
        unsettled: list[dict[str, Any]] = []
        for record in self._records():
            if "batch_id" in record:
                found.append(record)
                unsettled.append(record)
                continue
            for entry in unsettled:
                self._world.promise(
                    entry["generation"] == record["generation"],
                    f"batch {entry['batch_id']} is of generation {entry['generation']}, and generation "
                    f"{record['generation']} had taken over",
                )
            unsettled.clear()
        return found
