"""Whether ledger and outputs fit together, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidegate.ledger import ledger as ledgers
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.run.checkpoint import Checkpoint
from tidegate.run.verification import problems
from tidegate.sinks.manifest import Link, OutputManifest
from tidegate.sinks.output_folder import OutputFolder

BATCHES = 5


@dataclass(frozen=True)
class Job:
    """What a pipeline with one output has left."""

    checkpoint: Path
    output: OutputFolder

    def record(self, newest: int) -> Path:
        return sorted((self.checkpoint / "ledger").glob("*.json"))[newest]

    def lose_manifest(self, newest: int) -> None:
        self.output.manifests.delete(self.output.manifests.names()[newest])

    @property
    def found(self) -> str:
        return "\n".join(f"{each.file}: {each.problem}" for each in problems(Checkpoint.at(self.checkpoint)))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    found = Job(tmp_path / "checkpoint", OutputFolder(tmp_path / "out"))
    found.output.files.prepare()
    ledger, newest = Ledger(found.checkpoint / "ledger"), None
    ledger.take_over()
    for batch_id in range(BATCHES):
        receipt = {"rows": 0, "path": found.output.place, "after": list(newest) if newest else None}
        ledger.append(Entry(batch_id, ledger.generation, {}, {}, {"files:out": receipt}))
        newest = publish(found.output, batch_id, newest)
    return found


def publish(output: OutputFolder, batch_id: int, after: Link | None) -> Link:
    manifest = OutputManifest.of_batch("job", batch_id, after, rows=0, files=(), schema={})
    assert output.append(manifest)
    return manifest.header.link


def test_nothing_is_wrong_with_what_a_run_leaves(job: Job) -> None:
    assert job.found == ""


def test_a_batch_that_was_not_published_any_more_is_in_order(job: Job) -> None:
    job.lose_manifest(-1)
    assert job.found == ""


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda job: [job.lose_manifest(-1) for _ in range(2)],
            "it ends with batch 2, but batches up to",
        ),
        (lambda job: [job.lose_manifest(-1) for _ in range(5)], "it has no batch, but batches up to"),
        (lambda job: job.lose_manifest(2), "the output in"),
        (lambda job: job.record(-1).unlink(), "only up to 3: it has lost records"),
        (lambda job: job.record(3).unlink(), "000000000003.json: this record of the ledger is missing"),
        (lambda job: (job.checkpoint / "ledger/oldest-9").touch(), "000000000009.json: this record"),
        (lambda job: (job.checkpoint / "state.json").write_text("{}"), "state.json cannot be read"),
    ],
)
def test_what_is_missing_is_named(job: Job, damage: Callable[[Job], object], told: str) -> None:
    damage(job)
    assert told in job.found


def test_outputs_that_go_on_are_not_those_of_a_savepoint(job: Job) -> None:
    """The pipeline that it was taken of has written more since."""
    last = Ledger(job.checkpoint / "ledger").last
    assert last is not None
    ledgers.start_with(Checkpoint.at(job.checkpoint / "saved").ledger, last)
    newest = job.output.headers()[-1].link
    publish(job.output, BATCHES, newest)
    assert problems(Checkpoint.at(job.checkpoint / "saved")) == []
    assert "it has lost records" in job.found
