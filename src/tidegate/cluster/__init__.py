"""The compute behind a pipeline: executors that come and go while it runs."""

from tidegate.cluster.provider import Cluster
from tidegate.cluster.settings import open_cluster
from tidegate.spark.executors import Executor

__all__ = ["Cluster", "Executor", "open_cluster"]
