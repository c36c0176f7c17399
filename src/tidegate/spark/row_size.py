"""How large the rows are that Spark hands to Python.

After each row that it writes for Python, Spark adds up the bytes of the batch so far, to stay below a limit;
for narrow rows that takes longer than writing them. If rows have a fixed size, it is known whether even the
largest batch stays below the limit, and Spark can be told not to check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNLIMITED = str(2**31 - 1)
"""The one number with which Spark does not look; a larger one is a limit like any other."""
_MARKER = 5
"""Bytes of the column that a keyed step may add (`task.PARTITION`)."""


def settings(
    spark: SparkSession, schemas: Iterable[StructType], frames: Iterable[DataFrame]
) -> dict[str, str]:
    """What to set for a query that hands rows of these schemas to Python and has these frames as outputs.

    A limit that the user has set stays.
    """
    session: Any = spark._jsparkSession
    if session.sessionState().conf().contains(_BYTES):
        return {}
    limit, rows = (int(str(spark.conf.get(key)).rstrip("b")) for key in (_BYTES, _ROWS))
    sizes = [_size(schema) for schema in schemas]
    fixed = [size for size in sizes if size is not None]
    if rows <= 0 or len(fixed) < len(sizes) or max(fixed, default=0) * rows > limit:
        return {}
    return {} if any(_calls_python(frame) for frame in frames) else {_BYTES: _UNLIMITED}


def _size(schema: StructType) -> int | None:
    """Bytes of a row; None when they differ from row to row."""
    try:
        return _MARKER + _bytes(pa.struct(list(to_arrow_schema(schema, timezone="UTC"))))
    except (PySparkException, ValueError):
        return None


def _bytes(kind: pa.DataType) -> int:
    """Raises a ValueError for a type without a size."""
    if pa.types.is_struct(kind):
        return 1 + sum(_bytes(field.type) for field in kind)
    return 1 + -(-int(kind.bit_width) // 8)  # One more tells whether it is null.


def _calls_python(frame: DataFrame) -> bool:
    """Whether a user's expression does: what it hands over need not be a column."""
    jvm: Any = frame.sparkSession._jvm
    udf = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        node = todo.pop()
        if node.nodeName() != "MapInArrow":
            expressions = node.expressions()
            if any(expressions.apply(place).containsPattern(udf) for place in range(expressions.size())):
                return True
        children = node.children()
        todo += [children.apply(place) for place in range(children.size())]
    return False
