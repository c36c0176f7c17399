"""Reading what a files sink has committed, and nothing else."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Sequence
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import unquote, urlsplit

from tidegate.errors import PipelineError, SinkError
from tidegate.sinks import json_form
from tidegate.sinks.output_folder import OutputFolder

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
    folder = OutputFolder(root)
    chain = folder.chain()
    if not chain:
        raise SinkError(f"no batch has been committed to {root} yet")
    files = [folder.data / name for record in chain for name in record.files]
    if spark is not None:
        return _read_spark(files, chain[-1].schema, spark)
    try:
        rows = _read_arrow(files, chain[-1].schema)
    except FileNotFoundError as error:
        if folder.headers() != [record.header for record in chain]:
            return read(path)  # It took longer than replaced files are kept.
        raise folder.problem(f"a data file is missing: {error}") from error
    written = sum(record.header.rows for record in chain)
    if rows.num_rows != written:
        raise folder.problem(f"its files hold {rows.num_rows} rows, but {written} were committed")
    return rows


def verify(path: str | os.PathLike[str]) -> list[str]:
    """What is wrong with the output of a `Files` sink, one line each; it may be written meanwhile.

    Looks at every manifest, and for each data file at what it says of its rows.
    """
    folder = OutputFolder(local(path))
    if not folder.root.is_dir():
        return [f"there is no folder {folder.root}"]
    try:
        chain = folder.chain()
    except SinkError as error:
        return [str(error)]
    problems = []
    for record in chain:
        try:
            rows = sum(count(folder.data / name) for name in record.files)
        except (OSError, ValueError) as error:
            problems.append(f"a data file of batches {record.header.span} cannot be read: {error}")
            continue
        if rows != (wanted := record.header.rows):
            span = record.header.span
            problems.append(f"the files of batches {span} in {folder.root} hold {rows} rows, not {wanted}")
    return problems


def count(file: Path) -> int:
    """How many rows a data file says it has. Raises OSError or ValueError."""
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(file).num_rows)
    with file.open("rb") as lines:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: lines.read(1 << 20), b""))


def _read_spark(files: Sequence[Path], fields: dict[str, Any], spark: SparkSession) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(fields)
    rows = spark.createDataFrame([], schema)
    for suffix in sorted({file.suffix for file in files}):
        alike = [str(file) for file in files if file.suffix == suffix]
        reader = spark.read.format(suffix[1:]).schema(schema).options(**json_form.LINES, mode="FAILFAST")
        rows = rows.unionByName(reader.load(alike))
    return rows


def _read_arrow(files: Sequence[Path], fields: dict[str, Any]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    # All that is read from files may be null.
    schema = to_arrow_schema(StructType.fromJson(fields).toNullable(), timezone="UTC")
    tables = [schema.empty_table()]
    for suffix, alike in groupby(files, lambda file: file.suffix):
        if suffix == ".json":
            tables += [_load_json(file, schema) for file in alike]
        else:
            # Spark writes timestamps in the old 96-bit form, without a zone: they are in UTC.
            found = pq.read_table(
                list(alike), schema=schema, partitioning=None, coerce_int96_timestamp_unit="us"
            )
            tables.append(found)
    return pa.concat_tables(tables)


def _load_json(path: Path, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    with path.open(encoding="utf-8") as lines:
        # Numbers stay text until the column says what they are, such as decimals or doubles.
        rows = [json.loads(line, parse_int=str, parse_float=str) for line in lines]
    return pa.Table.from_struct_array(_array(rows, pa.struct(list(schema))))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """JSON values as Spark writes them, their numbers as text, as an array of an Arrow type."""
    import pyarrow as pa
    import pyarrow.types as t

    null = pa.array([value is None for value in values], pa.bool_())
    if t.is_struct(kind):
        parts = [_array([(value or {}).get(field.name) for value in values], field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=null)
    if t.is_list(kind) or t.is_map(kind):
        offsets = pa.array([0, *accumulate(len(value or ()) for value in values)], pa.int32())
        entries = list(chain.from_iterable(value or () for value in values))  # of a map, the keys
        if t.is_list(kind):
            return pa.ListArray.from_arrays(offsets, _array(entries, kind.value_type), type=kind, mask=null)
        items = _array([item for value in values for item in (value or {}).values()], kind.item_type)
        return pa.MapArray.from_arrays(offsets, _array(entries, kind.key_type), items, type=kind, mask=null)
    if t.is_binary(kind):
        return pa.array([None if value is None else b64decode(value) for value in values], kind)
    if t.is_boolean(kind):
        values = [None if value is None else str(value).lower() for value in values]
    try:
        return pa.array(values, pa.string()).cast(kind)
    except pa.ArrowNotImplementedError:
        problem = f"columns of type {kind} cannot be read back from JSON; write Parquet instead"
        raise SinkError(problem) from None
