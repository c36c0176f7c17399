"""A copy of an output folder as it was after a batch, taken while the pipeline goes on."""

from __future__ import annotations

from contextlib import suppress

from tidegate.sinks.committed import count
from tidegate.sinks.data.data_files import batches_of
from tidegate.sinks.data.folder_files import FolderFiles
from tidegate.sinks.manifest import Link, OutputManifest
from tidegate.sinks.output_folder import OutputFolder


def copy(source: OutputFolder, target: OutputFolder, batch_id: int) -> None:
    """Bring what batches up to `batch_id`, a committed one, have written.

    Within a file system files get a second name, within a bucket the store copies them; otherwise their bytes
    pass through here.

    Raises FileNotFoundError when a file vanishes, or has been merged with rows of later batches: then a copy
    up to those can be taken.
    """
    target.files.prepare()
    # The batch may not be published yet, or just be: its files are staged, or on their way.
    for attempt, parts in source.files.staged().items():
        for part in parts if attempt.batch_id == batch_id else ():
            storage, name = source.files.staged_in(attempt, part)
            to, new_name = target.files.staged_in(attempt, part)
            with suppress(FileNotFoundError):  # It came to nothing, or is in the data folder by now.
                storage.copy(name, to, new_name)
    if isinstance(source.files, FolderFiles) and isinstance(target.files, FolderFiles):
        target.files.take_settled(source.files, batch_id)
    before: Link | None = None
    for record in source.chain():
        held = [(name, span) for name in record.files if (span := batches_of(name))]
        files = [name for name, span in held if span.first <= batch_id]
        for name, span in held:
            if span.first <= batch_id < span.last:
                raise FileNotFoundError(f"{name} in {source.place} holds rows of batches up to {span.last}")
        target.files.take(files, source.files)
        if record.header.last > batch_id:
            if not files:
                break
            # It was compacted together with later batches.
            record = OutputManifest.of_batch(
                record.header.pipeline,
                held[len(files) - 1][1].last,
                before,
                rows=sum(count(target.files, name) for name in files),
                files=files,
                schema=record.schema,
            )
        target.append(record)
        before = record.header.link
