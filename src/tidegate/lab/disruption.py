"""What is wrong in a lab until it is healed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class Disruption:
    """Something that is wrong until `heal`, or to the end of a `with`."""

    def __init__(self, heal: Callable[[], object]) -> None:
        self._heal: Callable[[], object] | None = heal

    def heal(self) -> None:
        """Put it right, as far as nothing else is in the way. May be called again."""
        heal, self._heal = self._heal, None
        if heal is not None:
            heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.heal()
