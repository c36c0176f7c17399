"""Reading what a files sink has committed, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import unquote, urlsplit

from tidegate.errors import PipelineError, SinkError
from tidegate.sinks import json_form, manifest
from tidegate.sinks.manifest import OutputManifest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def local(path: str | os.PathLike[str]) -> Path:
    """The absolute folder that `path` names; it may be written as a `file://` address."""
    text = os.fspath(path)
    if "://" in text or text.startswith("file:"):
        address = urlsplit(text)
        if address.scheme != "file" or address.netloc not in ("", "localhost"):
            raise PipelineError(f"{text!r} is not a local folder; write a path, or file:///path")
        text = unquote(address.path)
    if not text:
        raise PipelineError("the path of a folder is empty")
    return Path(text).resolve()


@overload
def read(path: str | os.PathLike[str], spark: None = None) -> pa.Table: ...
@overload
def read(path: str | os.PathLike[str], spark: SparkSession) -> DataFrame: ...
def read(path: str | os.PathLike[str], spark: SparkSession | None = None) -> pa.Table | DataFrame:
    """The rows that a `Files` sink has committed to `path`: whole batches, each of them once.

    An Arrow table, or a DataFrame when `spark` is given. It is the state at the time of the call; reading
    while a pipeline writes is safe. When the columns changed over time, those of the latest batch count:
    rows from before have nulls in columns that they lack.
    """
    root = local(path)
    if not root.is_dir():
        raise SinkError(f"there is no folder {root}; has the pipeline run, and from this directory?")
    batches = [manifest.load(place) for _, place in manifest.published(root)]
    if not batches:
        raise SinkError(f"no batch has been committed to {root} yet")
    if spark is not None:
        return _read_spark(root, batches, spark)
    return _read_arrow(root, batches)


def _read_spark(root: Path, batches: list[OutputManifest], spark: SparkSession) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(batches[-1].schema)
    rows = spark.createDataFrame([], schema)
    for file_format in sorted({batch.format for batch in batches}):
        files = [str(root / name) for batch in batches if batch.format == file_format for name in batch.files]
        if files:
            reader = spark.read.format(file_format).schema(schema).options(**json_form.LINES, mode="FAILFAST")
            rows = rows.unionByName(reader.load(files))
    return rows


def _read_arrow(root: Path, batches: list[OutputManifest]) -> pa.Table:
    import pyarrow as pa

    schema = _arrow_schema(batches[-1].schema)
    tables = [schema.empty_table()]
    for batch in batches:
        load = _load_parquet if batch.format == "parquet" else _load_json
        tables += [load(root / name, schema) for name in batch.files]
    return pa.concat_tables(tables)


def _arrow_schema(spark_schema: dict[str, Any]) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema: pa.Schema = to_arrow_schema(StructType.fromJson(_nullable(spark_schema)), timezone="UTC")
    return schema


def _nullable(schema: Any) -> Any:
    """Spark's JSON of a schema with nulls allowed everywhere, as in all that is read from files."""
    if isinstance(schema, list):
        return [_nullable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    allowed = ("nullable", "containsNull", "valueContainsNull")
    return {key: True if key in allowed else _nullable(part) for key, part in schema.items()}


def _load_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Spark writes timestamps in the old 96-bit form, without a zone: they are in UTC.
    found = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()
    columns = [
        found[field.name].cast(field.type)
        if field.name in found.column_names
        else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _load_json(path: Path, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    decoders = [(field.name, _decoder(field.type)) for field in schema]
    with path.open(encoding="utf-8") as lines:
        # Numbers stay text until the column says whether they are decimals or doubles.
        records = [json.loads(line, parse_float=str) for line in lines]
    columns = [
        pa.array([decode(record.get(name)) for record in records], field.type)
        for (name, decode), field in zip(decoders, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _decoder(kind: pa.DataType) -> Callable[[Any], Any]:
    """From a JSON value as Spark writes it to a Python value of an Arrow type; null stays null."""
    decode = _decoder_of_value(kind)
    return lambda value: None if value is None else decode(value)


def _decoder_of_value(kind: pa.DataType) -> Callable[[Any], Any]:
    from base64 import b64decode

    import pyarrow.types as t

    if t.is_struct(kind):
        fields = [(field.name, _decoder(field.type)) for field in kind]
        return lambda value: {name: decode(value.get(name)) for name, decode in fields}
    if t.is_map(kind):
        key, item = _decoder(kind.key_type), _decoder(kind.item_type)
        return lambda value: [(key(k), item(v)) for k, v in value.items()]
    if t.is_list(kind):
        element = _decoder(kind.value_type)
        return lambda value: [element(entry) for entry in value]
    simple: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = [
        (t.is_timestamp, datetime.fromisoformat),
        (t.is_date, date.fromisoformat),
        (t.is_decimal, Decimal),
        (t.is_floating, float),
        (t.is_integer, int),
        (t.is_binary, b64decode),
        (t.is_large_binary, b64decode),
        (t.is_boolean, lambda value: value if isinstance(value, bool) else value == "true"),
        (t.is_string, str),
        (t.is_large_string, str),
    ]
    for matches, decode in simple:
        if matches(kind):
            return decode
    raise SinkError(f"a column of type {kind} cannot be read back from JSON; write Parquet instead")
