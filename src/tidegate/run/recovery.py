"""What a run is resumed from: the state of the last committed batch, in nodes of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pyspark.sql import SparkSession

from tidegate.batch.garbage import Garbage
from tidegate.config import Config
from tidegate.errors import CheckpointError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.rescale.spread import resumed
from tidegate.run import fleet
from tidegate.run.checkpoint import Checkpoint, open_log
from tidegate.security.security import Security
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.fleet.stateless import Stateless
from tidegate.state.log.manifest import StateManifest
from tidegate.state.table.evolution import check_meaning, evolved
from tidegate.state.table.table import StateTable
from tidegate.storage.place import open_storage
from tidegate.storage.storage import Storage


class Stateful(Protocol):
    """What recovery has to know of a pipeline."""

    @property
    def tables(self) -> tuple[StateTable, ...]: ...

    @property
    def meaning(self) -> Mapping[str, Mapping[str, str]]: ...


def key_groups(last: Entry | None, config: Config) -> int:
    """The number of key groups; a checkpoint keeps the one that it began with."""
    return last.state.groups if last and last.state else config.state.key_groups


def check_durable(checkpoint: Checkpoint, last: Entry | None) -> None:
    """Raise CheckpointError when the state of the last committed batch went with its nodes."""
    if last is not None and not last.durable:
        raise CheckpointError(
            f"the checkpoint {checkpoint} cannot be resumed: it was written with state.durable off, so it "
            "holds no state; start with a new checkpoint"
        )


def base(
    checkpoint: Checkpoint, last: Entry | None, stateful: Stateful, config: Config
) -> StateManifest | None:
    """The state to resume with; None for a pipeline that neither keeps any nor did.

    Raises CheckpointError when it does not fit the pipeline.
    """
    check_durable(checkpoint, last)
    if last is not None and last.state is not None:
        check_meaning(last.meaning, stateful.meaning, checkpoint)
        return evolved(last.state, stateful.tables, checkpoint)
    if not stateful.tables:
        return None
    # A new checkpoint, or steps with state that were added to a pipeline without any: they begin with none.
    batch_id, watermark = (last.batch_id, last.watermark) if last else (-1, None)
    return StateManifest(batch_id, config.state.key_groups, watermark, stateful.tables)


def stateless(last: Entry | None, config: Config, parallelism: int) -> Stateless:
    """What a pipeline without state is resumed with: the parallelism of the last rescale, or `parallelism` if
    that has been configured since."""
    route, configured = (last.route, last.configured) if last else (None, None)
    return Stateless(resumed(route, 0, configured, nodes=config.state.nodes, partitions=parallelism))


def check(checkpoint: Checkpoint, ledger: Ledger, stateful: Stateful, config: Config) -> None:
    """Raise CheckpointError when the pipeline cannot be resumed from here. Changes nothing but the claim on a
    log outside of the checkpoint."""
    if base(checkpoint, ledger.last, stateful, config) is not None:
        fleet.check(config.state)
        open_log(checkpoint, config.state.log)


def start(
    checkpoint: Checkpoint,
    ledger: Ledger,
    stateful: Stateful,
    config: Config,
    security: Security,
    *,
    pipeline: str,
    parallelism: int,
    spark: SparkSession | None = None,
    staying: Callable[[], frozenset[str]] = frozenset,
) -> tuple[Nodes | None, Garbage]:
    """The state nodes, standing where the last batch left the state, and what keeps their log small. `spark`
    and the executors that are `staying` are for a provider that needs them."""
    found = base(checkpoint, ledger.last, stateful, config)
    if found is None:
        return None, Garbage(ledger, None, config.state.retention)
    log = open_log(checkpoint, config.state.log)
    storage = open_storage(log.place)
    garbage = Garbage(ledger, storage, config.state.retention)
    garbage.recover()
    settings, last = config.state, ledger.last
    planned = resumed(
        last.route if last else None,
        found.groups,
        last.configured if last else None,
        nodes=settings.nodes,
        partitions=parallelism,
    )
    redis = {"url": settings.redis, "prefix": f"tidegate:{pipeline}:{log.id}"}
    provider = fleet.opened(
        settings,
        max(planned.nodes) + 1,
        security=security,
        spark=spark,
        staying=staying,
        pipeline=pipeline,
        log=log.place,
        scratch=checkpoint.folder / "nodes",
        options=redis if settings.backend == "redis" else {},
        generation=ledger.generation,
    )
    peers = _by_peers(config, storage)
    nodes = Nodes(
        settings,
        provider=provider,
        pipeline=pipeline,
        base=found,
        route=planned,
        peers=peers,
        patience=storage.patience,
    )
    return nodes, garbage


def _by_peers(config: Config, storage: Storage) -> bool:
    if config.state.transfer == "auto":
        return not config.state.durable or not storage.mapped
    return config.state.transfer == "peer"
