"""How a party proves over TLS that it belongs to a run, and recognises the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["driver", "node", "task", "control"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """All in PEM, but for the name."""

    certificate: str = field(repr=False)
    key: str = field(repr=False)
    authority: str = field(repr=False)
    """The certificate of whoever signed those of all parties."""
    name: str
    """In the certificates of all parties: it tells one run from another that has the same authority."""
