"""Sources that have gone silent."""

from __future__ import annotations

from tidegate.run.progress import BatchProgress
from tidegate.view.figures import span

_WORTH_A_WORD = 10.0
"""Seconds: what is silent for less may only have little to say."""


def silences(last: BatchProgress) -> list[str]:
    """A phrase for each source that has been silent for a while: windows may be waiting for it."""
    return [
        f"{source} silent for {span(since)}" + (" (not waited for)" if source in last.idle else "")
        for source, since in last.silent.items()
        if since >= _WORTH_A_WORD
    ]
