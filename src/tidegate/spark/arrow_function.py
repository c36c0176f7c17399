"""`DataFrame.mapInArrow` with a tenth of the calls into Java.

PySpark asks Spark for each column by its name, which is wrong where a name holds a dot, and hands over its
environment piece by piece. Names and environment are the same in every batch, so they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def map_in_arrow(
    frame: DataFrame, columns: Sequence[str], function: ArrowFunction, schema: StructType
) -> DataFrame:
    """What `function` makes of the rows of each partition; `columns` are all that they have."""
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
    return DataFrame(
        rows.mapInArrow(mapped.apply(_named(context._jvm, tuple(columns))), False, None), frame.sparkSession
    )


@dataclass(frozen=True, slots=True)
class _Java:
    """What is the same in every batch."""

    function: Any
    udf: Any
    environment: Any
    includes: Any
    nothing: Any

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
        return cls(
            jvm.SimplePythonFunction,
            jvm.org.apache.spark.sql.execution.python.UserDefinedPythonFunction,
            settings,
            paths,
            jvm.java.util.ArrayList(),
        )


@lru_cache(maxsize=64)
def _named(jvm: Any, columns: tuple[str, ...]) -> Any:
    found = jvm.java.util.ArrayList()
    for name in columns:
        quoted = name.replace("`", "``")
        found.add(jvm.org.apache.spark.sql.functions.col(f"`{quoted}`"))
    return jvm.PythonUtils.toSeq(found)


@lru_cache(maxsize=64)
def _java_type(session: Any, schema: str) -> Any:
    return session.parseDataType(schema)
