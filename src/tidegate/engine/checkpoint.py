"""The folder that a pipeline goes on from.

<checkpoint>/pipeline.json   whose it is
             ledger/         committed batches and generations
             spark/          Spark's own offsets
             dead-letters/   rows that could not be read
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlparse

from tidegate.engine.handover import numbered_sources
from tidegate.errors import CheckpointError
from tidegate.ledger.atomic import create
from tidegate.pipeline.plan import Plan


def open_folder(place: str, plan: Plan) -> Path:
    """The folder, created when missing. Raises CheckpointError when it belongs to other sources."""
    parsed = urlparse(place)
    if parsed.scheme not in ("", "file"):
        raise CheckpointError(f"a checkpoint must be a local folder; {place!r} is not")
    folder = Path(parsed.path if parsed.scheme else place).resolve()
    mine = {
        "pipeline": plan.name,
        # Spark keeps offsets by number, so their order counts.
        "sources": [[s.name, type(s.source).__name__, s.source.location] for s in numbered_sources(plan)],
    }
    label = folder / "pipeline.json"
    try:
        is_new = create(label, json.dumps(mine, indent=2).encode())
        theirs = mine if is_new else json.loads(label.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be used: {error}") from error
    if theirs != mine:
        raise CheckpointError(
            f"the checkpoint {folder} was written by pipeline {theirs['pipeline']!r} with sources "
            f"{_shown(theirs['sources'])}, and this is {plan.name!r} with {_shown(mine['sources'])}; "
            "use another checkpoint folder, or undo the change to go on from this one"
        )
    return folder


def _shown(sources: object) -> str:
    assert isinstance(sources, list)
    return ", ".join(f"{name} ({place or kind})" for name, kind, place in sources)
