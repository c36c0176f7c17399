"""Elastic, fault-masking, stateful stream processing in Python on Apache Spark.

    import tidegate as tg

    p = tg.Pipeline("temperature")
    readings = p.source(tg.sources.Sensors(sensors=100_000, rate=100_000))
    hot = readings.filter("value > 30").with_column("kelvin", "value + 273.15")
    hot.sink(tg.sinks.Files("out/hot", format="parquet"))
    p.run()

Declaring a pipeline starts no JVM and imports no PySpark; `run` does.
"""

from tidegate import sinks, sources
from tidegate.errors import PipelineError, TidegateError
from tidegate.pipeline import agg
from tidegate.pipeline.pipeline import Pipeline
from tidegate.pipeline.stream import KeyedStream, Stream
from tidegate.pipeline.window import session, sliding, tumbling
from tidegate.run.progress import BatchProgress
from tidegate.sinks.committed import read

__version__ = "0.1.0"

__all__ = [
    "BatchProgress",
    "KeyedStream",
    "Pipeline",
    "PipelineError",
    "Stream",
    "TidegateError",
    "agg",
    "read",
    "session",
    "sinks",
    "sliding",
    "sources",
    "tumbling",
]
