"""Event time as a batch sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Time:
    """Event time in a batch, in microseconds; None until every source has been heard."""

    closed: int | None
    """The watermark of the batch before: what was due by then has been emitted. A row whose window ended
    at or before it is late."""
    watermark: int | None
    """The watermark of this batch: what is due by then is emitted now."""

    def delayed(self, delay: int) -> Time:
        """The time of a step whose rows are up to `delay` microseconds behind the watermark."""
        return Time(*(None if micros is None else micros - delay for micros in (self.closed, self.watermark)))


def moment(micros: int | None) -> datetime | None:
    """An event time for people."""
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)
