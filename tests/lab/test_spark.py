"""Spark's standalone mode on hosts: who runs where, and what comes back."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.lab.kit import await_that, left_behind
from tidegate.errors import LabError
from tidegate.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WORKER = "deploy.worker.Worker"
MASTER = "deploy.master.Master"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Lab]:
    declared = {
        "hosts": {"near": {}, "far": {"count": 2}, "late": {"up": False}},
        "spark": {"master": "near", "memory": "512m"},
    }
    with Lab(declared) as lab:
        yield lab
    assert not left_behind(lab.name)


def test_there_is_a_worker_on_each_host_but_the_masters(cluster: Lab) -> None:
    assert cluster.spark.url == "spark://near:7077"
    assert cluster.spark.registered == {"far-1", "far-2"}
    hosts = ("near", "far-1", "far-2")
    assert [name for name in hosts if cluster[name].processes(WORKER)] == ["far-1", "far-2"]
    assert cluster["near"].processes(MASTER)


def test_a_worker_that_is_killed_is_started_again(cluster: Lab) -> None:
    (before,) = cluster["far-1"].processes(WORKER)
    cluster["far-1"].signal(signal.SIGKILL, WORKER)
    await_that(lambda: cluster["far-1"].processes(WORKER) not in ([], [before]), "there is another worker")


def test_a_host_that_comes_up_has_a_worker(cluster: Lab) -> None:
    cluster["far-2"].kill()
    cluster.boot("late", "far-2")
    cluster.spark.await_workers()
    assert {"late", "far-2"} <= cluster.spark.registered
    assert cluster["far-2"].processes(WORKER), "the worker of a host that was killed is back"


def test_a_lab_without_spark_says_how_to_have_one(lab: Lab) -> None:
    with pytest.raises(LabError, match=r'declare it, like \[spark\] with master = "near"'):
        _ = lab.spark
