"""Folders of JSON lines, CSV or Parquet files; files that appear later are picked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from tidegate.pipeline.where import refused
from tidegate.sources._lines import check_event_time, parse, struct
from tidegate.sources._names import is_remote, local_path
from tidegate.sources.columns import Columns, declared
from tidegate.sources.source import RAW, REASON, Limit, Source, Taken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["json", "csv", "parquet"]

_BYTE_ORDER_MARK = "\ufeff"
# By default Spark silently ignores files that are a week older than the newest one.
_STREAM_OPTIONS = {"maxFileAge": "36500d"}
_BINARY_FILE = "path string, modificationTime timestamp, length bigint, content binary"
_NO_CONNECTOR = ("No FileSystem for scheme", "java.lang.ClassNotFoundException: Class ")
_error = partial(refused, step="Files")


@dataclass(frozen=True, slots=True)
class Files(Source):
    """The rows of all files in the folder `path`, each file once, in about the order they appeared.

    A file must appear whole (write it elsewhere or under a name with a leading dot, then rename it), and
    is known by its name: writing to it again is not noticed. Names with a leading dot or underscore are
    ignored. The folder must be there when the pipeline starts; it may be empty.

    `format`: "json" (one object per line), "csv" (one record per line, no line breaks in quotes) or
    "parquet". `schema` in Spark's DDL; for parquet it may be left out when a file is there already.
    Columns missing in a JSON object or Parquet file are null, surplus ones are ignored.
    `header`: CSV lines that repeat the schema's column names are skipped.
    `options`: further ones of Spark's JSON or CSV parser, such as `sep` or `timestampFormat`.

    Empty files, and lines of nothing but spaces, are skipped. A line that does not fit comes out with RAW
    and REASON, and so does a Parquet file that cannot be read (RAW is its path then; rows before the
    damage are good rows). A compressed text file that cannot be unpacked fails the batch, since Spark
    unpacks it before it sees a line: replace it with an intact or an empty file of the same name, and start
    the pipeline again.
    """

    path: str | Path
    format: Format = "json"
    schema: str | None = None
    event_time: str | None = None
    grace: str = "0 seconds"
    header: bool = field(default=False, kw_only=True)
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)

    fallible: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not str(self.path):
            raise _error("path is empty; give a folder")
        if self.format not in get_args(Format):
            raise _error(f"format must be one of {', '.join(get_args(Format))}, not {self.format!r}")
        if self.schema is None and self.format != "parquet":
            raise _error(f"{self.format} files need a schema, like 'id bigint, name string'")
        if not isinstance(self.schema, str | None):
            raise _error(f"the schema is text, like 'id bigint, name string', not {self.schema!r}")
        if self.header and self.format != "csv":
            raise _error(f"header is for csv, not for {self.format}")
        if self.options and self.format == "parquet":
            raise _error("options are for json and csv")
        if taken := {"mode", "columnNameOfCorruptRecord"} & self.options.keys():
            raise _error(f"option {min(taken)} cannot be set: Tidegate uses it to find malformed lines")

    @property
    def folder(self) -> str:
        """`path`, absolute unless it is a URL."""
        path = str(self.path)
        return path if is_remote(path) else str(local_path(path))

    @property
    def known_columns(self) -> Columns | None:
        return None if self.schema is None else declared(self.schema)

    @property
    def location(self) -> str:
        return f"files:{self.folder}"

    def describe(self) -> str:
        return f"Files {self.path} ({self.format})"

    def check(self) -> str | None:
        if is_remote(self.folder) or set(self.folder) & set("*?[{"):  # Spark would look for a pattern.
            return None
        folder = Path(self.folder)
        if folder.is_file():
            raise _error(f"{self.path} is a file; give the folder that it is in")
        if not folder.is_dir():
            raise _error(f"there is no folder {folder}; correct the path, or create it if files come later")
        if any(path.is_file() for path in folder.rglob("[!._]*")):
            return None
        return f"no files in {folder} yet"

    def load(self, spark: SparkSession, *, parallelism: int, first_rows: int | None) -> DataFrame:
        try:
            return self._load(spark, first_rows)
        except Exception as error:
            if not is_remote(self.folder) or not any(sign in str(error) for sign in _NO_CONNECTOR):
                raise
            raise _error(
                f"Spark has no connector to read {self.path}: copy the files to a folder, or have it load "
                "one, for S3 `org.apache.hadoop:hadoop-aws` by `spark.conf.spark.jars.packages`, and write s3a://"
            ) from error

    def _load(self, spark: SparkSession, first_rows: int | None) -> DataFrame:
        schema = (
            _written_schema(spark, self.folder) if self.schema is None else struct(self.schema, step="Files")
        )
        check_event_time(self.event_time, schema, step="Files")
        stream = spark.readStream.options(**_STREAM_OPTIONS)
        if first_rows is not None:
            stream = stream.option("maxFilesPerTrigger", self.limit(first_rows, None).amount)
        if self.format == "parquet":
            from pyspark.sql.pandas.types import to_arrow_schema

            from tidegate.sources._parquet import read_files

            # Only names go through Spark's source, so that a damaged file fails in our hands.
            names = stream.format("binaryFile").schema(_BINARY_FILE).load(self.folder).select("path")
            target = schema.add(RAW, "string").add(REASON, "string")
            return names.mapInArrow(partial(read_files, to_arrow_schema(target, timezone="UTC")), target)
        lines = self._lines(stream.text(self.folder), schema)
        return parse(lines, schema, format=self.format, options=self.options)

    def limit(self, rows: int, taken: Taken | None) -> Limit:
        """Bytes by the size per row of the latest batch; files where sizes cannot be seen from here.

        One file while nothing is known.
        """
        if taken is None or not taken.files:
            return Limit("files", 1)
        files = [path for path in map(local_path, taken.files) if path.is_file()]
        if len(files) < len(taken.files) and taken.rows > 0:  # Not on this machine, or removed since.
            return Limit("files", max(1, rows * len(taken.files) // taken.rows))
        size = sum(path.stat().st_size for path in files)
        count = taken.rows
        if self.format == "parquet":
            from tidegate.sources._parquet import count_rows

            # Spark may have counted files instead of rows, as that is all that its source saw.
            count = count_rows(files) or 0
        if not size or count <= 0:
            return Limit("files", 2 * len(taken.files))
        return Limit("bytes", max(1, rows * size // count))

    def _lines(self, text: DataFrame, schema: StructType) -> DataFrame:
        """The lines in a column RAW: without blank ones, headers and byte order marks."""
        from pyspark.sql import functions as F

        lines = text.select(F.ltrim("value", F.lit(_BYTE_ORDER_MARK)).alias(RAW)).where(F.trim(RAW) != "")
        if not self.header:
            return lines
        separator = self.options.get("sep", self.options.get("delimiter", ","))
        plain = F.translate(F.lower(RAW), f'{separator}" \t', ",")
        return lines.where(plain != ",".join(schema.names).lower())


def _written_schema(spark: SparkSession, folder: str) -> StructType:
    """The schema of the first file in the folder that can be read."""
    from pyspark.errors import PySparkException

    from tidegate.sources._parquet import count_rows

    missing = f"{folder} has no parquet file to take the schema from; give a schema"
    if is_remote(folder):
        try:
            return spark.read.parquet(folder).schema
        except PySparkException as error:
            raise _error(missing) from error
    for file in sorted(Path(folder).rglob("[!._]*")):
        # Spark would log pages of failed tasks for a damaged file.
        if file.is_file() and count_rows([file]) is not None:
            return spark.read.parquet(str(file)).schema
    raise _error(missing)
