"""Spark's own checkpoint, as far as it is read without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.spark.checkpoint_files import CheckpointFiles


def entry(path: str, batch_id: int) -> str:
    return json.dumps({"path": path, "timestamp": 1, "batchId": batch_id})


def written(folder: Path, name: str, lines: list[str]) -> CheckpointFiles:
    log = folder / "sources" / "0" / name
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(["v1", *lines]))
    return CheckpointFiles(folder)


@pytest.mark.parametrize("count", [1, 3, 5_000])
def test_files_of_a_batch_that_was_compacted_are_found_without_reading_those_before(
    count: int, tmp_path: Path
) -> None:
    """Whatever comes before the batch is left alone: here it could not even be parsed."""
    files = [f"file:///in/a%20long/enough/name/{number:05}.json" for number in range(count)]
    before = ["unreadable"] * 10_000 + [entry("file:///in/old", 8)]
    found = written(tmp_path, "9.compact", [*before, *(entry(file, 9) for file in files)])
    assert found.source_files(0, {"logOffset": 9}) == tuple(files)


def test_files_of_any_other_batch(tmp_path: Path) -> None:
    found = written(tmp_path, "3", [entry("file:///in/a", 3), entry("file:///in/b", 3)])
    assert found.source_files(0, {"logOffset": 3}) == ("file:///in/a", "file:///in/b")
    assert found.source_files(0, {"logOffset": 4}) == ()
    assert found.source_files(0, {"offset": 4}) == ()
