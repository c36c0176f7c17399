"""How far a store has got with a key group."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

_FORM = re.compile(r"(-?\d+-[0-9a-f]+)\+([0-9a-f]+)(?:@(\d+):(\d+))?")


@dataclass(frozen=True, slots=True)
class Mark:
    """What a store has as the version of a key group, as text. A text never comes back once it has changed:
    whoever finds the one that was there before knows that nothing happened in between."""

    version: str
    """Which state it is: the number of its batch, `-`, and a digest of what that consists of."""
    load: str
    """Tells one load of the group from any other."""
    cursor: tuple[int, int] | None
    """The table, by number, and the hash from which on nothing is loaded yet; None when all of it is."""

    @classmethod
    def first(cls, version: str) -> Mark:
        """Of a load that begins."""
        return cls(version, secrets.token_hex(8), (0, 0))

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """None for a text that is no mark."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        version, load, table, start = found.groups()
        return cls(version, load, None if table is None else (int(table), int(start)))

    @property
    def batch_id(self) -> int:
        return int(self.version.rpartition("-")[0])

    def __str__(self) -> str:
        at = "" if self.cursor is None else f"@{self.cursor[0]}:{self.cursor[1]}"
        return f"{self.version}+{self.load}{at}"
