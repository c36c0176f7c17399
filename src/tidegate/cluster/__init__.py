"""The compute behind a pipeline: executors that come and go while it runs."""

from tidegate.cluster.provider import Cluster
from tidegate.cluster.settings import open_cluster

__all__ = ["Cluster", "open_cluster"]
