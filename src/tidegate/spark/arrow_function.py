"""`DataFrame.mapInArrow` with a tenth of the calls into Java.

PySpark asks Spark for each column by its name, which is wrong where a name holds a dot, and hands over its
environment piece by piece. But Spark passes on all columns whether they are named or not, and the environment
is the same in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.sql import DataFrame
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql.types import StructType

ArrowFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def map_in_arrow(frame: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """What `function` makes of the rows of each partition."""
    context = frame.sparkSession.sparkContext
    command, broadcasts, environment, includes = _prepare_for_python_RDD(context, (function, schema))
    java = _Java.of(context, tuple(environment.items()), tuple(includes))
    python = java.function(
        bytearray(command),
        java.environment,
        java.includes,
        context.pythonExec,
        context.pythonVer,
        broadcasts or java.nothing,
        context._javaAccumulator,
    )
    kind = _java_type(frame.sparkSession._jsparkSession, schema.json())
    eval_type = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    mapped = java.udf("tidegate", python, kind, eval_type, True, java.nothing, java.nothing)
    rows: Any = frame._jdf
    return DataFrame(rows.mapInArrow(mapped.apply(java.no_columns), False, None), frame.sparkSession)


@dataclass(frozen=True, slots=True)
class _Java:
    """What is the same in every batch."""

    function: Any
    udf: Any
    environment: Any
    includes: Any
    nothing: Any
    no_columns: Any

    @classmethod
    @lru_cache(maxsize=1)
    def of(
        cls, context: SparkContext, environment: tuple[tuple[str, str], ...], includes: tuple[str, ...]
    ) -> _Java:
        jvm: Any = context._jvm
        settings, paths = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
        for name, value in environment:
            settings.put(name, value)
        for path in includes:
            paths.add(path)
        nothing = jvm.java.util.ArrayList()
        return cls(
            jvm.SimplePythonFunction,
            jvm.org.apache.spark.sql.execution.python.UserDefinedPythonFunction,
            settings,
            paths,
            nothing,
            jvm.PythonUtils.toSeq(nothing),
        )


@lru_cache(maxsize=64)
def _java_type(session: Any, schema: str) -> Any:
    return session.parseDataType(schema)
