"""Sources that have gone silent."""

from __future__ import annotations

from tidegate.run.progress import SILENCE, BatchProgress
from tidegate.view.figures import span


def silences(last: BatchProgress) -> list[str]:
    """A phrase for each source that has been silent for a while: windows may be waiting for it."""
    return [
        f"{source} silent for {span(since)}" + (" (not waited for)" if source in last.idle else "")
        for source, since in last.silent.items()
        if since >= SILENCE
    ]
