"""Parquet or JSON files in a folder."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import PipelineError, SinkError
from tidegate.pipeline.where import refused
from tidegate.sinks import json_form, manifest
from tidegate.sinks.committed import local
from tidegate.sinks.manifest import OutputManifest
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter
from tidegate.spark.frames import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DATA = "data"
_FORMATS = ("parquet", "json")


@dataclass(frozen=True, slots=True)
class Files(Sink):
    """Rows as files under `path`, each batch visible once and whole.

    Data files are in `path/data/<attempt>/`. A batch is visible once `path/_manifests/<batch>.json` names
    its files, and that manifest is created atomically. `tidegate.read(path)` reads what is visible; a reader
    that takes all files in the folder would also see failed attempts.

    `path` is a folder that the driver and all executors see under the same name. It belongs to one
    pipeline and its checkpoint: with a new checkpoint, use a new folder.
    """

    path: str | os.PathLike[str]
    format: Literal["parquet", "json"] = "parquet"

    def __post_init__(self) -> None:
        try:
            local(self.path)
        except PipelineError as error:
            raise refused(error.problem, step="Files") from None
        if self.format not in _FORMATS:
            problem = f"cannot write {self.format!r}; it can write {' and '.join(_FORMATS)}"
            raise refused(problem, step="Files")

    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        root = local(self.path)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"{self.describe()}: cannot create the folder: {error}") from error
        if not os.access(root, os.W_OK | os.X_OK):
            raise SinkError(f"{self.describe()}: {root} is not writable; change its owner or its mode")
        local_only = str(spark.sparkContext.master).startswith("local")
        return _Writer(root, self.format, pipeline, remote=not local_only)

    def describe(self) -> str:
        return f"Files {os.fspath(self.path)} ({self.format})"

    @property
    def location(self) -> str:
        return f"files:{local(self.path)}"


class _Writer(SinkWriter):
    def __init__(self, root: Path, file_format: str, pipeline: str, *, remote: bool) -> None:
        self._root = root
        self._remote = remote
        self._format = file_format
        self._pipeline = pipeline
        self._attempts: list[Path] = []

    def check(self, rows: DataFrame) -> None:
        # Spark says what it cannot write only when it writes: so let it write no rows, elsewhere.
        folder = self._root / f".check-{uuid4().hex}"
        try:
            self._save(rows.sparkSession.createDataFrame([], rows.schema), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        folder = self._root / _DATA / str(attempt)
        # Executors of other machines may see another folder under this name; local ones cannot.
        rows, written = counted(rows) if self._remote else (rows, None)
        self._save(rows, folder)
        counts = {part: _count(part) for part in sorted(folder.glob("part-*"))}
        found = sum(counts.values())
        if written is not None and found < written():
            raise SinkError(
                f"executors wrote {written()} rows of {attempt}, but the driver finds {found} in {folder}: "
                "use a folder that the driver and all executors share"
            )
        # Spark writes a file even for a partition without rows.
        files = [part for part, count in counts.items() if count]
        # The ledger must never name files that a power cut has lost. A file is synced as a folder is.
        for place in (*files, folder, folder.parent):
            DISK.sync_folder(place)
        self._attempts.append(folder)
        return {
            "attempt": str(attempt),
            "format": self._format,
            "rows": found,
            "files": [str(part.relative_to(self._root)) for part in files],
            "schema": rows.schema.jsonValue(),
        }

    def publish(self, batch_id: int, receipt: Receipt) -> None:
        if manifest.path_of(self._root, batch_id).exists():
            return
        for name in receipt["files"]:
            if not (self._root / name).is_file():
                raise SinkError(f"batch {batch_id} cannot be published: {self._root / name} is missing")
        OutputManifest(pipeline=self._pipeline, batch_id=batch_id, **receipt).publish(self._root)
        # What earlier attempts of this run wrote for the batch.
        for folder in self._attempts:
            if _batch_of(folder) == batch_id and folder.name != receipt["attempt"]:
                shutil.rmtree(folder, ignore_errors=True)
        self._attempts = [folder for folder in self._attempts if _batch_of(folder) > batch_id]

    def recover(self, committed: int, receipt: Receipt | None, *, generation: int) -> None:
        visible = dict(manifest.published(self._root))
        self._check_owner(visible, committed)
        # A batch without rows has a folder, too.
        if receipt and committed not in visible and not (self._root / _DATA / receipt["attempt"]).is_dir():
            raise SinkError(
                f"the output of batches up to {committed} is missing from {self._root}, but the checkpoint "
                "continues after them: restore the folder, or start over with a new checkpoint"
            )
        attempts: defaultdict[int, list[Path]] = defaultdict(list)
        for folder in (self._root / _DATA).glob("[0-9]*-*-*"):
            attempts[_batch_of(folder)].append(folder)
        for batch_id, folders in attempts.items():
            if batch_id > committed:
                orphans = [folder for folder in folders if int(folder.name.split("-")[1]) < generation]
            elif batch_id in visible and len(folders) > 1:
                winner = manifest.load(visible[batch_id]).attempt
                orphans = [folder for folder in folders if folder.name != winner]
            else:  # the only attempt; or committed but not published, and the ledger knows which it is
                orphans = []
            for folder in orphans:
                # A driver that was replaced may still write there; the next start finds what is left.
                shutil.rmtree(folder, ignore_errors=True)

    def _save(self, rows: DataFrame, folder: Path) -> None:
        options = json_form.LINES if self._format == "json" else {}
        rows.write.format(self._format).options(**options).save(str(folder))

    def _check_owner(self, visible: dict[int, Path], committed: int) -> None:
        if not visible:
            return
        latest = max(visible)
        owner = manifest.load(visible[latest]).pipeline
        if owner != self._pipeline:
            raise SinkError(
                f"{self._root} holds the output of pipeline {owner!r}, not of {self._pipeline!r}; "
                "give each pipeline a folder of its own"
            )
        if latest > committed:
            # Its next batches would be mistaken for repeats of those and lost.
            raise SinkError(
                f"{self._root} holds batches up to {latest}, but the checkpoint has committed only up to "
                f"{committed}: use the checkpoint that wrote them, or another folder, or remove this one"
            )


def _batch_of(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def _count(part: Path) -> int:
    if part.suffix == ".parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(part).num_rows)
    with part.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
