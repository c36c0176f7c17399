"""The Id-Id join of the 2024 autoscaling evaluation: two groups of 50,000 sensors, a message a second each.

Readings of both groups with the same id in the same 4 seconds are paired.

tidegate run examples/id_id_join.py --for "60 seconds"
"""

import numpy as np
import pyarrow as pa

import tidegate as tg

TERMS = 30


def fibonacci(pairs: pa.RecordBatch) -> pa.RecordBatch:
    """Some computing for each pair: a Fibonacci number, term by term over the whole column at once."""
    index = pairs["id"].to_numpy() % TERMS
    low, high = np.zeros(len(index), np.int64), np.ones(len(index), np.int64)
    for term in range(TERMS):
        going_on = index > term
        low, high = np.where(going_on, high, low), np.where(going_on, low + high, high)
    return pairs.append_column("fibonacci", pa.array(low))


p = tg.Pipeline("id-id-join")
first = p.source(tg.sources.Sensors(sensors=50_000, rate=50_000, seed=1))
second = p.source(tg.sources.Sensors(sensors=50_000, rate=50_000, seed=2)).select(
    "id", "timestamp", other="value"
)
pairs = first.window_join(second, on="id", window=tg.tumbling("4 seconds"))
computed = pairs.select("window_start", "id", "value", "other").map_arrow(
    fibonacci, "window_start timestamp, id bigint, value double, other double, fibonacci bigint"
)
computed.sink(tg.sinks.Files("out/id-id-join", format="parquet"))

if __name__ == "__main__":
    p.run()
