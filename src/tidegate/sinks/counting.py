"""How many rows a write took, without reading them twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counted(rows: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """The same rows, and a function that tells their number once they have been written.

    It tells 0 when no Spark job has read them.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation()
    observed = rows.observe(observation, f.count(f.lit(1)).alias("rows"))

    def count() -> int:
        # Spark hands the figure over a little after the job; without a job it would wait for ever.
        future = observation._jo.future()  # type: ignore[union-attr]
        if not future.isCompleted():
            rows.sparkSession.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return int(observation.get["rows"]) if future.isCompleted() else 0

    return observed, count
