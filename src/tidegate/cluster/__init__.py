"""The compute behind a pipeline: executors that come and go while it runs."""

from tidegate.cluster.provider import Cluster, ExecutorLine
from tidegate.cluster.settings import open_cluster

__all__ = ["Cluster", "ExecutorLine", "open_cluster"]
