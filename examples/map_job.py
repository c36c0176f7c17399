"""The map job of the 2024 autoscaling evaluation: 100,000 sensors, some computing for each record.

It keeps no state, and can be rescaled all the same:

tidegate run examples/map_job.py --for "60 seconds" --at "30 seconds: parallelism=4"
"""

import numpy as np
import pyarrow as pa

import tidegate as tg

TERMS = 60


def fibonacci(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A Fibonacci number for each record, computed term by term over the whole column at once."""
    index = batch["id"].to_numpy() % TERMS
    low, high = np.zeros(len(index), np.int64), np.ones(len(index), np.int64)
    for term in range(TERMS):
        going_on = index > term
        low, high = np.where(going_on, high, low), np.where(going_on, low + high, high)
    return batch.append_column("fibonacci", pa.array(low))


p = tg.Pipeline("map-job")
readings = p.source(tg.sources.Sensors(sensors=100_000, rate=100_000))
computed = readings.map_arrow(fibonacci, "id bigint, timestamp timestamp, value double, fibonacci bigint")
computed.sink(tg.sinks.Files("out/map-job", format="parquet"))

if __name__ == "__main__":
    p.run()
