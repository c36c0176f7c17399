"""The Python workers of a run are ready before its first batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tidegate as tg
from tests.run.readings import sensors
from tidegate.cluster.local import InProcess
from tidegate.run.compute import Compute, warming

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_workers_have_imported_what_the_steps_of_the_plan_need(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        for batch in batches:
            known = "tidegate.operators.top_n" in sys.modules
            yield pa.RecordBatch.from_pydict({"known": [known] * batch.num_rows})

    p = tg.Pipeline("warm")
    p.source(sensors(10)).key_by("id").top_n(3, by="value").sink(tg.sinks.Discard())
    slots = spark.sparkContext.defaultParallelism
    Compute(spark, InProcess(), warming(p.plan(), spark)).wait_until_warm()
    found = spark.range(0, slots, 1, slots).mapInArrow(look, "known boolean").collect()
    assert [row.known for row in found] == [True] * slots
