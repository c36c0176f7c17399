"""Which cluster a pipeline runs on, by its configuration."""

from __future__ import annotations

from tidegate.cluster.local import InProcess, LocalCluster
from tidegate.cluster.provider import Cluster
from tidegate.cluster.standalone import Standalone
from tidegate.config.settings import ClusterSettings
from tidegate.errors import ConfigError


def open_cluster(settings: ClusterSettings, *, master: str = "local[*]") -> Cluster:
    """The cluster that these settings ask for; `master` is `spark.master`."""
    if settings.provider == "auto" and not settings.workers:
        if master.startswith("spark://"):
            return Standalone(master, cores=settings.cores, memory=settings.memory)
        return InProcess(master)
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
