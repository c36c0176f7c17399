"""Where a running pipeline answers, and what it has to be asked with."""

from __future__ import annotations

from dataclasses import dataclass, field

FILE = "control.json"
"""In the checkpoint, readable by the user of the pipeline only."""


@dataclass(frozen=True, slots=True)
class Contact:
    """What that file says; the process is the driver's."""

    url: str
    token: str = field(repr=False)
    pid: int
    pipeline: str
    authority: str | None = None
    """The certificate, in PEM, of whoever signed that of the pipeline; None if it speaks plain HTTP."""
    name: str | None = None
    """In the certificate of the pipeline; None goes by the address."""
