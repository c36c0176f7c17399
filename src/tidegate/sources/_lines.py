"""Text as rows of a schema; text that does not fit comes out with the reason instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tidegate.pipeline.where import refused
from tidegate.sources.columns import missing
from tidegate.sources.source import RAW, REASON

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_PARSED, _END = "_tidegate_parsed", "_tidegate_end"


def parse(
    lines: DataFrame,
    schema: StructType,
    *,
    format: Literal["json", "csv"] = "json",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The columns of `schema`, RAW and REASON for each text in the column RAW of `lines`.

    A text that is null is a bad row, too, with an empty RAW. `options` are those of Spark's parser.
    """
    from pyspark.sql import functions as F

    settings = {**(options or {}), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": REASON}
    parsed, row, problem = (_json if format == "json" else _csv)(schema, settings)
    reason = (
        F.when(F.col(RAW).isNull(), "no value")
        .when(~F.is_valid_utf8(F.col(RAW)), "not UTF-8")
        .otherwise(problem)
    )
    checked = lines.select(RAW, parsed.alias(_PARSED)).select("*", reason.alias(REASON))
    raw = F.when(F.col(REASON).isNotNull(), F.coalesce(F.make_valid_utf8(F.col(RAW)), F.lit("")))
    return checked.select(*(row[name].alias(name) for name in schema.names), raw.alias(RAW), REASON)


def struct(ddl: str, *, step: str) -> StructType:
    """The columns that a schema in Spark's DDL declares. PipelineError if it declares none."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(ddl)
    except PySparkException as error:
        said = re.sub(r"\[\S+\] |\.? SQLSTATE:.*", "", str(error).strip(), flags=re.DOTALL)
        raise refused(f"{ddl!r} is not a schema: {said}", step=step) from error
    if not isinstance(found, StructType) or not found.names:
        raise refused(f"{ddl!r} is not a schema; write it like 'id bigint, name string'", step=step)
    return found


def check_event_time(event_time: str | None, schema: StructType, *, step: str) -> None:
    """PipelineError unless the event time, if there is one, is a column of the schema."""
    if event_time is not None and event_time not in schema.names:
        raise refused(f"event_time={event_time!r}: {missing(schema.names, event_time)}", step=step)


def _json(schema: StructType, options: dict[str, str]) -> tuple[Column, Column, Column]:
    """The text RAW parsed, the row in what was parsed, and why it is none (null if it is).

    Spark parses the first object of a text and stops, whatever follows. So the text is put into an
    array before an object of our own: if exactly these two come out, it was one object and no more.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, StructType

    row = StructType([*schema.fields]).add(_END, "integer")
    target = StructType().add("rows", ArrayType(row)).add(REASON, "string")
    wrapped = F.concat(F.lit('{"rows":['), RAW, F.lit(f',{{"{_END}":1}}]}}'))
    rows = F.col(_PARSED)["rows"]
    is_parsed = F.col(_PARSED)[REASON].isNull()
    is_alone = F.coalesce((F.size(rows) == 2) & (rows[1][_END] == 1), F.lit(False))
    # Only bad texts pay for finding out what is wrong with them.
    elements = F.json_array_length(F.concat(F.lit("["), RAW, F.lit("]")))
    problem = (
        F.when(is_parsed & is_alone & rows[0].isNotNull(), None)
        .when(is_parsed & ~is_alone, "not JSON, or more than one object")
        .when(elements.isNull() | (elements != 1), "not JSON, or more than one object")
        .when(~F.ltrim(RAW).startswith("{"), "not a JSON object")
        .otherwise("a value does not fit the type of its column")
    )
    return F.from_json(wrapped, target, options), rows[0], problem


def _csv(schema: StructType, options: dict[str, str]) -> tuple[Column, Column, Column]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    target = StructType([*schema.fields]).add(REASON, "string")
    row = F.col(_PARSED)
    problem = f"not {len(schema.names)} fields, or a value does not fit the type of its column"
    parsed = F.from_csv(F.col(RAW), target.toDDL(), options)
    return parsed, row, F.when(row.isNull() | row[REASON].isNotNull(), problem)
