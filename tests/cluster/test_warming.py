"""The job that warms up an executor; how executors come by it is told by the tests of clusters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tidegate.cluster.warming import warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _apart(act: Callable[[], bool]) -> bool:
    """In a thread of its own, as clusters do it: what it sets for its job is not set for others."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(act).result()


def test_an_executor_that_has_gone_takes_nobody_with_it(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert not _apart(lambda: warm_up(spark, "7", 1))
    assert "executor 7 was not warmed up: the task ran on another one" in caplog.text


def test_a_warm_up_knows_that_it_ran_where_it_should(spark: SparkSession) -> None:
    assert _apart(lambda: warm_up(spark, "driver", 1))


def test_a_warm_up_that_fails_is_told_and_no_more(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setitem(sys.modules, "tidegate.operators.absent", ModuleType("absent"))
    assert not _apart(lambda: warm_up(spark, "driver", 1))
    assert "was not warmed up" in caplog.text
    assert "tidegate.operators.absent" in caplog.text
