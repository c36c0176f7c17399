"""A copy of an output folder as it was after a batch, taken while the pipeline goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tidegate.sinks.committed import count
from tidegate.sinks.manifest import Link, OutputManifest
from tidegate.sinks.output_folder import OutputFolder, batches_of


def copy(
    source: OutputFolder, target: OutputFolder, batch_id: int, link: Callable[[Path, Path], None]
) -> None:
    """Bring what batches up to `batch_id`, a committed one, have written, by `link(file, new name)`.

    Raises FileNotFoundError when a file vanishes, or has been merged with rows of later batches: then a copy
    up to those can be taken.
    """
    target.prepare()
    # The batch may not be published yet, or just be: its files are staged, or on their way.
    for attempt in source.staged.glob(f"{batch_id:012d}-*"):
        (target.staged / attempt.name).mkdir()
        for part in attempt.glob("part-*"):
            with suppress(FileNotFoundError):  # It came to nothing, or is in the data folder by now.
                link(part, target.staged / attempt.name / part.name)
    for path in source.data.glob(f"{batch_id:012d}-*"):
        link(path, target.data / path.name)
    before: Link | None = None
    for record in source.chain():
        held = [(name, span) for name in record.files if (span := batches_of(name))]
        files = [name for name, span in held if span.first <= batch_id]
        for name, span in held:
            if span.first <= batch_id < span.last:
                raise FileNotFoundError(f"{source.data / name} holds rows of batches up to {span.last}")
        for name in files:
            if not (target.data / name).exists():
                link(source.data / name, target.data / name)
        if record.header.last > batch_id:
            if not files:
                break
            # It was compacted together with later batches.
            record = OutputManifest.of_batch(
                record.header.pipeline,
                held[len(files) - 1][1].last,
                before,
                rows=sum(count(target.data / name) for name in files),
                files=files,
                schema=record.schema,
            )
        target.append(record)
        target.show(record.files)
        before = record.header.link
