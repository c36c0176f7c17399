"""The read limit of a Python Data Source that also says into how many partitions to split the cut.

For each batch Spark tells the reader nothing but its limit: JSON that becomes one of PySpark's classes, with
whatever value is in it. So the number of partitions travels beside that of the rows.
"""

from __future__ import annotations

from typing import Any


def split_limit(rows: int | None, partitions: int) -> dict[str, Any]:
    """What PySpark makes a `ReadMaxRows` of; `rows` is None where the limit is still that of the start."""
    return {"_type": "ReadMaxRows", "max_rows": {"rows": rows, "partitions": partitions}}


def rows_and_partitions(limit: object) -> tuple[int | None, int | None]:
    """What a limit says, be it one of these or of Spark's own.

    >>> from pyspark.sql.streaming.datasource import ReadMaxRows
    >>> rows_and_partitions(ReadMaxRows(split_limit(500, 4)["max_rows"]))
    (500, 4)
    >>> rows_and_partitions(ReadMaxRows(500))
    (500, None)
    """
    most = getattr(limit, "max_rows", None)
    return (most["rows"], most["partitions"]) if isinstance(most, dict) else (most, None)
