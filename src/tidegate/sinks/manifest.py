"""The record that makes one batch of a files sink visible."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import SinkError
from tidegate.ledger.atomic import create

_FOLDER = "_manifests"


@dataclass(frozen=True, slots=True)
class OutputManifest:
    """The data files of one committed batch, relative to the folder of the sink."""

    pipeline: str
    batch_id: int
    attempt: str
    format: str
    rows: int
    files: Sequence[str]
    schema: dict[str, Any]
    """Spark's own JSON form of the schema."""

    def publish(self, root: Path) -> bool:
        """Make the batch visible, all of it at once; False when it was visible already."""
        return create(path_of(root, self.batch_id), json.dumps(asdict(self)).encode())


def path_of(root: Path, batch_id: int) -> Path:
    """Where the manifest of a batch is, or would be."""
    return root / _FOLDER / f"{batch_id:012d}.json"


def load(path: Path) -> OutputManifest:
    try:
        return OutputManifest(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise SinkError(f"{path} is not a manifest that this version of Tidegate can read: {error}") from None


def published(root: Path) -> Iterator[tuple[int, Path]]:
    """Batch id and manifest of every visible batch, in their order."""
    for path in sorted((root / _FOLDER).glob("[0-9]*.json")):
        yield int(path.stem), path
