"""Functions and schemas that a user gives to a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import LASTING, StepError
from tidegate.pipeline.step import Schema
from tidegate.pipeline.where import failing_line


@contextmanager
def errors_of(function: Callable[..., Any], place: str) -> Iterator[None]:
    """What fails in the block is told with `place`, the step, and the line of the user's function.

    StepError where another try cannot help; RuntimeError where it may, as with a service out of reach.
    """
    try:
        yield
    except Exception as error:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        line = failing_line(file, error)
        at = f", in line {line}" if line else ""
        own = type(error).__module__ == getattr(function, "__module__", None)
        lasting = (own or isinstance(error, LASTING)) and not isinstance(error, OSError)
        told = f"{place}{at}: {type(error).__name__}: {error}"
        raise (StepError if lasting else RuntimeError)(told) from error


def conformed(found: Any, schema: pa.Schema) -> pa.Table:
    """The record batch or table that a function returned, cast to what was declared."""
    table = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
    return table.select(schema.names).cast(schema)


def spark_schema(schema: Schema) -> StructType:
    """A schema declared as Spark SQL text or as Arrow has it."""
    declared = StructType.fromDDL(schema) if isinstance(schema, str) else from_arrow_schema(schema)
    assert isinstance(declared, StructType)
    return declared
