"""Reading what a files sink has committed, and nothing else."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, groupby, islice
from typing import TYPE_CHECKING, Any, overload

from tidegate.errors import SinkError
from tidegate.sinks import json_form
from tidegate.sinks.data import parquet_form
from tidegate.sinks.data.data_files import DataFiles
from tidegate.sinks.data.folder_files import FolderFiles
from tidegate.sinks.data.store_rows import store_rows
from tidegate.sinks.output_folder import OutputFolder, place_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FOOTER_BYTES = 64 << 10
"""Most Parquet files have a shorter one."""
_CHUNK = 1 << 20
_AT_ONCE = 256
"""Files that are fetched before their rows are looked at."""


@overload
def read(path: str | os.PathLike[str], spark: None = None) -> pa.Table: ...
@overload
def read(path: str | os.PathLike[str], spark: SparkSession) -> DataFrame: ...
def read(path: str | os.PathLike[str], spark: SparkSession | None = None) -> pa.Table | DataFrame:
    """The rows that a `Files` sink has committed to `path`: whole batches, each of them once.

    An Arrow table, or a DataFrame when `spark` is given. It is the state at the time of the call; reading
    while a pipeline writes is safe. When the columns changed over time, those of the latest batch count:
    rows from before have nulls in columns that they lack.

    `path` may be in an object store. Then a DataFrame is read by tasks, with credentials from the
    environment of the executors, and Spark needs nothing else for it.
    """
    folder = OutputFolder(place_of(path))
    chain = folder.chain()
    if not chain:
        raise SinkError(f"no batch has been committed to {folder.place} yet")
    names = [name for record in chain for name in record.files]
    if spark is not None:
        return _read_spark(folder.files, names, chain[-1].schema, spark)
    try:
        rows = _read_arrow(folder.files, names, chain[-1].schema)
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
    folder = OutputFolder(place_of(path))
    try:
        chain = folder.chain()
    except SinkError as error:
        return [str(error)]
    problems = []
    for record in chain:
        try:
            rows = sum(folder.files.each(partial(count, folder.files), record.files))
        except (OSError, ValueError) as error:
            problems.append(f"a data file of batches {record.header.span} cannot be read: {error}")
            continue
        if rows != (wanted := record.header.rows):
            span = record.header.span
            problems.append(f"the files of batches {span} in {folder.place} hold {rows} rows, not {wanted}")
    return problems


def count(files: DataFiles, name: str) -> int:
    """How many rows a data file says it has. Raises OSError or ValueError."""
    if name.endswith(".json"):
        return rows_in(name, files.fetch(name))
    end = files.end(name, _FOOTER_BYTES)
    footer = int.from_bytes(end.slice(max(0, end.size - 8), 4).to_pybytes(), "little") + 8
    return rows_in(name, end if footer <= end.size else files.fetch(name))


def rows_in(name: str, content: pa.Buffer) -> int:
    """How many rows a data file says it has; of Parquet, its end is enough. Raises ValueError."""
    if name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        return int(pq.read_metadata(pa.BufferReader(content)).num_rows)
    lines = memoryview(content)
    return sum(bytes(lines[at : at + _CHUNK]).count(b"\n") for at in range(0, len(lines), _CHUNK))


def _read_spark(
    files: DataFiles, names: Sequence[str], fields: dict[str, Any], spark: SparkSession
) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(fields)
    rows = spark.createDataFrame([], schema)
    for suffix in sorted({name.rpartition(".")[2] for name in names}):
        alike = [name for name in names if name.endswith(suffix)]
        if not isinstance(files, FolderFiles):
            rows = rows.unionByName(store_rows(files.place, alike, schema, suffix, spark))
            continue
        reader = spark.read.format(suffix).schema(schema).options(**json_form.LINES, mode="FAILFAST")
        rows = rows.unionByName(reader.load([str(files.data / name) for name in alike]))
    return rows


def _read_arrow(files: DataFiles, names: Sequence[str], fields: dict[str, Any]) -> pa.Table:
    import pyarrow as pa

    schema = parquet_form.arrow_schema(fields)

    tables = [schema.empty_table()]
    for suffix, alike in groupby(names, lambda name: name.rpartition(".")[2]):
        while some := list(islice(alike, _AT_ONCE)):
            contents = files.each(files.fetch, some)
            if suffix == "parquet":
                tables.append(parquet_form.load(contents, schema))
            else:
                tables += [_load_json(content, schema) for content in contents]
    return pa.concat_tables(tables)


def _load_json(content: pa.Buffer, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    # Numbers stay text until the column says what they are, such as decimals or doubles.
    lines = content.to_pybytes().split(b"\n")
    rows = [json.loads(line, parse_int=str, parse_float=str) for line in lines if line]
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
