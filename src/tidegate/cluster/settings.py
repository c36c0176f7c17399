"""Which cluster a pipeline runs on, by its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.cluster.local import InProcess, LocalCluster
from tidegate.cluster.provider import Cluster
from tidegate.cluster.standalone import Standalone
from tidegate.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The section `cluster` of the configuration."""

    provider: Literal["local", "standalone"] = "local"
    workers: int = 0
    """Of `local`: processes with one executor each; 0 runs tasks in the driver's JVM."""
    cores: int = 1
    """Of one executor."""
    memory: str = "1g"
    """Of one executor."""


def open_cluster(settings: ClusterSettings, *, master: str = "local[*]") -> Cluster:
    """The cluster that these settings ask for; `master` is `spark.master`."""
    if settings.provider == "standalone":
        if not master.startswith("spark://"):
            raise ConfigError(
                f"cluster.provider is standalone, but spark.master is {master!r}: set it to spark://host:port"
            )
        return Standalone(master, cores=settings.cores, memory=settings.memory)
    if not master.startswith("local"):
        raise ConfigError(
            f"cluster.provider is local, but spark.master is {master!r}: set cluster.provider to standalone, "
            "or spark.master to local[*]"
        )
    if settings.workers == 0:
        return InProcess(master)
    return LocalCluster(settings.workers, settings.cores, settings.memory)
