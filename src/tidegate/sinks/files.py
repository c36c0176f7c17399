"""Parquet or JSON files in a folder."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import DurationError, PipelineError, SinkError, SizeError
from tidegate.pipeline.where import refused
from tidegate.sinks import json_form, small_files
from tidegate.sinks.committed import count, local
from tidegate.sinks.compaction import FAN_IN, Compaction
from tidegate.sinks.manifest import Header, Link, OutputManifest
from tidegate.sinks.output_folder import OutputFolder
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter, ahead
from tidegate.spark.frames import counted
from tidegate.units import seconds, size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_FORMATS = ("parquet", "json")
_NO_MARKER = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


@dataclass(frozen=True, slots=True)
class Files(Sink):
    """Rows as files under `path`, each batch visible once and whole.

    The data files in the folder are those of committed batches, so any reader of Parquet or JSON may take
    all of them; the files of a batch come into sight one after the other. `tidegate.read(path)` sees whole
    batches: one is visible once a manifest in `path/_tidegate`, which other readers skip, names its files.

    `compact_to`, a size such as "128 MB": small files are merged into larger ones in the background, every
    hundred batches. For `tidegate.read` that is one step, and what was replaced can be read to its end for
    as long as `keep_replaced`. Other readers may see rows twice, or miss a file, while files are swapped.

    `path` is a folder that the driver and all executors see under the same name. It belongs to one
    pipeline and its checkpoint: with a new checkpoint, use a new folder.
    """

    path: str | os.PathLike[str]
    format: Literal["parquet", "json"] = "parquet"
    compact_to: str | None = field(default=None, kw_only=True)
    keep_replaced: str = field(default="1 hour", kw_only=True)

    def __post_init__(self) -> None:
        try:
            local(self.path)
        except PipelineError as error:
            raise refused(error.problem, step="Files") from None
        if self.format not in _FORMATS:
            problem = f"cannot write {self.format!r}; it can write {' and '.join(_FORMATS)}"
            raise refused(problem, step="Files")
        try:
            self._compaction(OutputFolder(local(self.path)))
        except (SizeError, DurationError) as error:
            raise refused(str(error), step="Files") from None

    def check(self) -> None:
        self._prepared()

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        local_only = str(spark.sparkContext.master).startswith("local")
        compaction = self._compaction(self._prepared())
        return _Writer(compaction, self.format, pipeline, remote=not local_only)

    def _compaction(self, folder: OutputFolder) -> Compaction:
        target = size(self.compact_to) if self.compact_to is not None else None
        return Compaction(folder, target, seconds(self.keep_replaced))

    def _prepared(self) -> OutputFolder:
        folder = OutputFolder(local(self.path))
        try:
            folder.prepare()
        except OSError as error:
            raise SinkError(f"{self.describe()}: cannot write to {folder.root}: {error}") from error
        return folder

    def describe(self) -> str:
        return f"Files {os.fspath(self.path)} ({self.format})"

    @property
    def location(self) -> str:
        return f"files:{local(self.path)}"


class _Writer(SinkWriter):
    def __init__(self, compaction: Compaction, file_format: str, pipeline: str, *, remote: bool) -> None:
        self._folder = compaction.folder
        self._compaction = replace(compaction, proceed=self._proceed)
        self._remote = remote
        self._format = file_format
        self._pipeline = pipeline
        self._newest: Link | None = None
        self._attempts: list[Path] = []
        self._published = 0
        self._compacting = threading.Thread()
        self._closing = threading.Event()

    def check(self, rows: DataFrame) -> None:
        if self._compaction.target is not None and self._format == "parquet":
            small_files.check(rows.schema)
        # Spark says what it cannot write only when it writes: so let it write no rows, elsewhere.
        folder = self._folder.staged / f".check-{uuid4().hex}"
        try:
            self._save(rows.sparkSession.createDataFrame([], rows.schema), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        folder = self._folder.staged / str(attempt)
        # Executors of other machines may see another folder under this name; local ones cannot.
        rows, written = counted(rows) if self._remote else (rows, None)
        self._save(rows, folder)
        counts = {part: count(part) for part in sorted(folder.glob("part-*"))}
        found = sum(counts.values())
        if written is not None and found < written():
            raise SinkError(
                f"executors wrote {written()} rows of {attempt}, but the driver finds {found} in {folder}: "
                "use a folder that the driver and all executors share"
            )
        # Spark writes a file even for a partition without rows.
        files = [part for part, count in counts.items() if count]
        # The ledger must never name files that a power cut has lost.
        for file in files:
            DISK.sync_file(file)
        for place in (folder, folder.parent):
            DISK.sync_folder(place)
        self._attempts.append(folder)
        return {
            "attempt": str(attempt),
            "path": str(self._folder.root),
            "rows": found,
            "files": [part.name for part in files],
            "schema": rows.schema.jsonValue(),
            "after": list(self._newest) if self._newest else None,
        }

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        if self._newest is not None and batch_id <= self._newest.batch_id:
            return
        record = OutputManifest.of_batch(
            self._pipeline,
            batch_id,
            self._newest,
            rows=receipt["rows"],
            files=self._moved(batch_id, receipt),
            schema=receipt["schema"],
        )
        if not self._folder.append(record):
            record = self._folder.load(record.header.span)
        self._folder.show(record.files)
        self._newest = record.header.link
        for folder in (self._folder.staged / receipt["attempt"], *self._attempts):
            if _batch_of(folder) <= batch_id:
                shutil.rmtree(folder, ignore_errors=True)
        self._attempts = [folder for folder in self._attempts if _batch_of(folder) > batch_id]
        self._published += 1
        if self._published % FAN_IN == 0:
            self._compact()

    def recover(self, committed: int, receipt: Receipt | None, *, generation: int) -> None:
        # Without a receipt, only the data files can tell that the newest manifest is missing.
        in_sight = self._folder.newest_in_sight() if receipt is None else -1
        headers = self._folder.headers()
        newest = headers[-1] if headers else None
        self._folder.check_newest(in_sight, newest)
        if newest is not None:
            self._check_owner(newest, committed)
            self._newest = newest.link
            # The driver may have ended after the newest manifest, before its files were in sight; and a power
            # cut may take those of batches that are not compacted yet out of sight again.
            for header in headers:
                if header is newest or header.first == header.last:
                    self._folder.show(self._folder.load(header.span).files)
        if receipt and (newest is None or newest.last < committed):
            self._publish_again(committed, receipt)
        for folder in self._folder.staged.glob("[0-9]*-*-*"):
            if int(folder.name.split("-")[1]) < generation:
                # A driver that was replaced may still write there; the next start finds what is left.
                shutil.rmtree(folder, ignore_errors=True)
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
                log.warning("the output in %s cannot be compacted: %s", self._folder.root, error)

        self._compacting = threading.Thread(target=run, name="compaction", daemon=True)
        self._compacting.start()

    def _proceed(self) -> None:
        if self._closing.is_set():
            raise _ClosingError

    def _save(self, rows: DataFrame, folder: Path) -> None:
        options = json_form.LINES if self._format == "json" else {}
        rows.write.format(self._format).options(**options, **_NO_MARKER).save(str(folder))

    def _moved(self, batch_id: int, receipt: Receipt) -> list[str]:
        """Have the files of a committed batch in the data folder; their names there."""
        staged, data = self._folder.staged / receipt["attempt"], self._folder.data
        names = []
        for number, part in enumerate(receipt["files"]):
            names.append(f"{receipt['attempt']}-{number:05d}{Path(part).suffix}")
            try:
                DISK.rename(staged / part, data / names[-1])
            except FileNotFoundError:
                if not (data / names[-1]).is_file():
                    problem = f"batch {batch_id} cannot be published: {staged / part} is missing"
                    raise SinkError(problem) from None
        if names:
            DISK.sync_folder(data)
        return names

    def _publish_again(self, committed: int, receipt: Receipt) -> None:
        """Publish the batch that the checkpoint ends with, if all before it is there."""
        after = Link(*receipt["after"]) if receipt["after"] else None
        if after != self._newest:
            there = f"ends with batch {self._newest.batch_id}" if self._newest else "has no batch"
            raise SinkError(
                f"the output of batches up to {committed} is missing from {self._folder.root}: it {there}, "
                "but the checkpoint continues after them. Restore the folder, or start over with a new "
                "checkpoint"
            )
        self.publish(committed, receipt)

    def _check_owner(self, newest: Header, committed: int) -> None:
        if newest.pipeline != self._pipeline:
            raise SinkError(
                f"{self._folder.root} holds the output of pipeline {newest.pipeline!r}, not of "
                f"{self._pipeline!r}; give each pipeline a folder of its own"
            )
        if newest.last > committed:
            raise ahead(str(self._folder.root), newest.last, committed, anew="use another folder")


class _ClosingError(Exception):
    """Ends a compaction; the next one does all of it."""


def _batch_of(folder: Path) -> int:
    return int(folder.name.partition("-")[0])
