"""Notices when nearly all rows come too late: the sign of a watermark that has run away."""

from __future__ import annotations

_SHARE = 0.9
"""Of the rows of a batch."""
_BATCHES = 3
"""In a row: one may be a source that catches up."""


class Lateness:
    """The late rows of one batch after the other."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def is_alarming(self, rows: int, late: int) -> bool:
        """Whether with this batch nearly all rows of several have been late; true once, until that is over.

        >>> lateness = Lateness()
        >>> [lateness.is_alarming(100, late) for late in (95, 95, 95, 95, 0, 95)]
        [False, False, True, False, False, False]
        """
        if rows:  # A batch without rows tells nothing.
            self._in_a_row = self._in_a_row + 1 if late >= _SHARE * rows else 0
        return rows > 0 and self._in_a_row == _BATCHES
