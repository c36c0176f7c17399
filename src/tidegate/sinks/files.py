"""Parquet or JSON files in a folder or an object store."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.errors import DurationError, MissingExtraError, PipelineError, SinkError, SizeError
from tidegate.pipeline.where import refused
from tidegate.sinks.compaction import FAN_IN, Compaction
from tidegate.sinks.data import parquet_form
from tidegate.sinks.data.staging import Format, staging
from tidegate.sinks.manifest import Header, Link, OutputManifest
from tidegate.sinks.output_folder import OutputFolder, place_of
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter, ahead
from tidegate.units import seconds, size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_FORMATS = ("parquet", "json")
_CHECK_PATIENCE = 10.0
"""Seconds for which a store may be away when it is first looked at."""


@dataclass(frozen=True, slots=True)
class Files(Sink):
    """Rows as files under `path`, each batch visible once and whole.

    The data files in the folder are those of committed batches, so any reader of Parquet or JSON may take
    all of them; the files of a batch come into sight one after the other. `tidegate.read(path)` sees whole
    batches: one is visible once a manifest in `path/_tidegate`, which other readers skip, names its files.

    `compact_to`, a size such as "128 MB": small files are merged into larger ones in the background, every
    hundred batches. For `tidegate.read` that is one step, and what was replaced can be read to its end for
    as long as `keep_replaced`. Other readers may see rows twice, or miss a file, while files are swapped.

    `path` is a folder that the driver and all executors see under the same name, or a place in an object
    store such as `s3://bucket/out`, which tasks write to directly, with credentials from the environment. It
    belongs to one pipeline and its checkpoint: with a new checkpoint, use a new folder.
    """

    path: str | os.PathLike[str]
    format: Format = "parquet"
    compact_to: str | None = field(default=None, kw_only=True)
    keep_replaced: str = field(default="1 hour", kw_only=True)

    def __post_init__(self) -> None:
        try:
            place_of(self.path)
        except PipelineError as error:
            raise refused(error.problem, step="Files") from None
        if self.format not in _FORMATS:
            problem = f"cannot write {self.format!r}; it can write {' and '.join(_FORMATS)}"
            raise refused(problem, step="Files")
        try:
            self._merging()
        except (SizeError, DurationError) as error:
            raise refused(str(error), step="Files") from None

    def check(self) -> None:
        self._prepared(_CHECK_PATIENCE)

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        local_only = str(spark.sparkContext.master).startswith("local")
        target, grace = self._merging()
        compaction = Compaction(self._prepared(), target, grace)
        return _Writer(compaction, self.format, pipeline, remote=not local_only)

    def _merging(self) -> tuple[int | None, float]:
        """Up to how many bytes, and for how many seconds what was merged is kept."""
        return size(self.compact_to) if self.compact_to is not None else None, seconds(self.keep_replaced)

    def _prepared(self, patience: float | None = None) -> OutputFolder:
        place = place_of(self.path)
        try:
            folder = OutputFolder(place, patience=patience)
            folder.files.prepare()
        except MissingExtraError:
            raise
        except OSError as error:
            raise SinkError(f"{self.describe()}: cannot write to {place}: {error}") from error
        return folder

    def describe(self) -> str:
        return f"Files {os.fspath(self.path)} ({self.format})"

    @property
    def location(self) -> str:
        return f"files:{place_of(self.path)}"


class _Writer(SinkWriter):
    def __init__(self, compaction: Compaction, file_format: Format, pipeline: str, *, remote: bool) -> None:
        self._folder = compaction.folder
        self._files = compaction.folder.files
        self._compaction = replace(compaction, proceed=self._proceed)
        self._staging = staging(self._files, file_format, remote=remote)
        self._format = file_format
        self._pipeline = pipeline
        self._newest: Link | None = None
        self._published = 0
        self._compacting = threading.Thread()
        self._closing = threading.Event()

    def check(self, rows: DataFrame) -> None:
        if self._compaction.target is not None and self._format == "parquet":
            what = "cannot be merged; cast it, or leave out compact_to"
            parquet_form.check(rows.schema, what=what)
        self._staging.check(rows)

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        written = self._staging.write(rows, attempt)
        return {
            "attempt": str(attempt),
            "path": self._folder.place,
            "rows": written.rows,
            "files": written.files,
            "schema": rows.schema.jsonValue(),
            "after": list(self._newest) if self._newest else None,
        }

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        if self._newest is not None and batch_id <= self._newest.batch_id:
            return
        # Of attempts at this batch, others than the one that counts have come to nothing.
        over = {each: parts for each, parts in self._files.staged().items() if each.batch_id <= batch_id}
        attempt = Attempt.parse(receipt["attempt"])
        try:
            files = self._files.settle(attempt, receipt["files"], over.get(attempt, ()))
        except FileNotFoundError as error:
            raise SinkError(f"batch {batch_id} cannot be published: {error}") from None
        record = OutputManifest.of_batch(
            self._pipeline,
            batch_id,
            self._newest,
            rows=receipt["rows"],
            files=files,
            schema=receipt["schema"],
        )
        if not self._folder.append(record):
            record = self._folder.load(record.header.span)
        self._files.show(record.files)
        self._newest = record.header.link
        if record.files == tuple(files):
            over.pop(attempt, None)
        self._files.drop(over)
        self._published += 1
        if self._published % FAN_IN == 0:
            self._compact()

    def recover(self, committed: int, receipt: Receipt | None, *, generation: int) -> None:
        # Without a receipt, only the data files can tell that the newest manifest is missing.
        headers = self._folder.headers(check_end=receipt is None)
        newest = headers[-1] if headers else None
        if newest is not None:
            self._check_owner(newest, committed)
            self._newest = newest.link
            self._files.show_again([header.span for header in headers], self._folder.load)
        if receipt and (newest is None or newest.last < committed):
            self._publish_again(committed, receipt)
        # A driver that was replaced may still write; the next start finds what is left.
        staged = self._files.staged()
        over = {each: parts for each, parts in staged.items() if each.generation < generation}
        self._files.drop(over)
        self._compact()

    def close(self) -> None:
        self._closing.set()
        if self._compacting.ident is not None:
            self._compacting.join()

    def _compact(self) -> None:
        """Compact in the background, one at a time: what one leaves, the next finds."""
        if self._compacting.is_alive():
            return

        def run() -> None:
            try:
                self._compaction.run()
            except _ClosingError:
                pass
            except Exception as error:
                log.warning("the output in %s cannot be compacted: %s", self._folder.place, error)

        self._compacting = threading.Thread(target=run, name="compaction", daemon=True)
        self._compacting.start()

    def _proceed(self) -> None:
        if self._closing.is_set():
            raise _ClosingError

    def _publish_again(self, committed: int, receipt: Receipt) -> None:
        """Publish the batch that the checkpoint ends with, if all before it is there."""
        after = Link(*receipt["after"]) if receipt["after"] else None
        if after != self._newest:
            there = f"ends with batch {self._newest.batch_id}" if self._newest else "has no batch"
            raise SinkError(
                f"the output of batches up to {committed} is missing from {self._folder.place}: it {there}, "
                "but the checkpoint continues after them. Restore the folder, or start over with a new "
                "checkpoint"
            )
        self.publish(committed, receipt)

    def _check_owner(self, newest: Header, committed: int) -> None:
        if newest.pipeline != self._pipeline:
            raise SinkError(
                f"{self._folder.place} holds the output of pipeline {newest.pipeline!r}, not of "
                f"{self._pipeline!r}; give each pipeline a folder of its own"
            )
        if newest.last > committed:
            raise ahead(self._folder.place, newest.last, committed, anew="use another folder")


class _ClosingError(Exception):
    """Ends a compaction; the next one does all of it."""
