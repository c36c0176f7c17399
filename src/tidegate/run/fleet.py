"""The state nodes of a run, by its configuration: on this machine, with Spark's executors, or on others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from tidegate.cluster.executor_hosts import ExecutorHosts
from tidegate.config.settings import StateSettings as Settings
from tidegate.errors import ConfigError
from tidegate.security import token_file
from tidegate.security.security import Security
from tidegate.state.fleet.fleet import Fleet
from tidegate.state.fleet.local import LocalNodes, environment
from tidegate.state.fleet.remote import RemoteHosts
from tidegate.state.fleet.supervised import Hosts, SupervisedLauncher
from tidegate.state.node.spec import NodeSpec, inherited, write_probe
from tidegate.state.supervisor.registry import Registry
from tidegate.storage.place import local_folder, open_storage
from tidegate.units import seconds, size


def check(settings: Settings) -> None:
    """Raise ConfigError for a provider that lacks what it needs."""
    if settings.provider == "local":
        return
    if settings.bind is not None:
        raise ConfigError(
            f"state.bind is for nodes on the driver's machine, and state.provider is {settings.provider}: "
            "unset one of them"
        )
    if settings.provider == "remote" and (settings.registry is None or settings.token_file is None):
        raise ConfigError(
            "state.provider is remote, so set state.registry and state.token_file to what tidegate node was "
            "started with"
        )
    if seconds(settings.lease) < 4.0:
        raise ConfigError(f"state.lease is {settings.lease!r}: a busy driver needs 4 seconds or more")


def opened(
    settings: Settings,
    count: int,
    *,
    security: Security,
    spark: SparkSession | None,
    staying: Callable[[], frozenset[str]],
    pipeline: str,
    log: str,
    scratch: Path,
    options: Mapping[str, str],
    generation: int,
) -> Fleet:
    """`count` nodes. `security` is the driver's. `staying` tells the executors that are to stay, `log` where
    their log is; `scratch` is a folder of this machine."""
    if settings.provider == "local":
        return LocalNodes(
            count,
            pipeline=pipeline,
            log=log,
            scratch=scratch,
            backend=settings.backend,
            memory=size(settings.memory),
            durable=settings.durable,
            bind=settings.bind,
            security=security,
            options=options,
            timeout=seconds(settings.timeout),
            generation=generation,
        )
    lease = seconds(settings.lease)
    folder = local_folder(log)
    place = log if folder is None else str(folder.absolute())
    spec = NodeSpec(
        pipeline=pipeline,
        log=place,
        backend=settings.backend,
        memory=size(settings.memory),
        durable=settings.durable,
        lease=lease,
        probe=write_probe(open_storage(place), generation) if settings.durable else None,
        environment={**inherited(), **environment(security, options)},
    )
    return Fleet(
        SupervisedLauncher(spec, _hosts(settings, spark, staying, security, lease)),
        count,
        pipeline=pipeline,
        security=security,
        generation=generation,
        timeout=seconds(settings.timeout),
        lease=lease,
    )


def _hosts(
    settings: Settings,
    spark: SparkSession | None,
    staying: Callable[[], frozenset[str]],
    security: Security,
    lease: float,
) -> Hosts:
    if settings.provider == "executors":
        assert spark is not None
        return ExecutorHosts(spark, security=security, lease=lease, staying=staying)
    assert settings.registry is not None
    assert settings.token_file is not None
    known = token_file.read(Path(settings.token_file))
    return RemoteHosts(Registry(open_storage(settings.registry)), security=known)
