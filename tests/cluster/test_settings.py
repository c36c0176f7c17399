"""Which cluster a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidegate.cluster.local import InProcess
from tidegate.cluster.settings import open_cluster
from tidegate.cluster.standalone import Standalone
from tidegate.config.settings import ClusterSettings
from tidegate.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_tasks_run_in_the_driver_unless_something_else_is_asked_for() -> None:
    with open_cluster(ClusterSettings(), master="local[3]") as cluster:
        assert isinstance(cluster, InProcess)
        assert cluster.master == "local[3]"
        assert cluster.conf == {}


def test_an_existing_master_is_the_one_of_the_session() -> None:
    settings = ClusterSettings(provider="standalone", cores=2, memory="3g")
    with open_cluster(settings, master="spark://far:7077") as cluster:
        assert isinstance(cluster, Standalone)
        assert cluster.master == "spark://far:7077"
        assert cluster.conf["spark.executor.cores"] == "2"
        assert cluster.conf["spark.executor.memory"] == "3g"
        assert "spark.cores.max" not in cluster.conf


@pytest.mark.parametrize(("provider", "master"), [("standalone", "local[*]"), ("local", "spark://far:7077")])
def test_a_provider_and_a_master_that_do_not_fit_are_refused(provider: str, master: str) -> None:
    settings = ClusterSettings(provider=provider)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"cluster\.provider"):
        open_cluster(settings, master=master)


@pytest.mark.spark
def test_the_drivers_own_slots_are_what_they_are(spark: SparkSession) -> None:
    with InProcess("local[2]") as cluster:
        with pytest.raises(ClusterError, match="attach"):
            cluster.fit(3)
        cluster.attach(spark)
        assert cluster.fit(3) == 2
        assert cluster.executors() == ()
        with pytest.raises(ClusterError, match="0 executors"):
            cluster.fit(0)
