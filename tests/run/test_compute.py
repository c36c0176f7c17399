"""The Spark of a run: its Python workers are ready before the first batch, and its Java may die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tidegate as tg
from tests.java import DRIVER_JAVA, SMALL
from tests.run.readings import sensors
from tidegate.cluster.local import InProcess
from tidegate.run.compute import Compute, import_operators, warming

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
    import_operators(p.plan())
    Compute(spark, InProcess(), warming(spark)).wait_until_warm()
    found = spark.range(0, slots, 1, slots).mapInArrow(look, "known boolean").collect()
    assert [row.known for row in found] == [True] * slots


PROGRAM = """
import os, signal
from pyspark import SparkContext
import tidegate as tg
from tidegate.errors import QueryError

def kill(progress):
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)

p = tg.Pipeline("dying", config={{"spark": {{"master": "local[1]", "conf": {{"{option}": "{java}"}}}}}})
rows = p.source(tg.sources.Sensors(sensors=10, rate=10))
rows.key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
try:
    p.run(listeners=[kill])
except QueryError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_death_of_java_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM.format(option=DRIVER_JAVA, java=SMALL)]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in told.stderr
    assert told.stdout.startswith("Spark's Java process was killed by SIGKILL; "), told.stderr
    assert told.stdout.count("\n") == 1
