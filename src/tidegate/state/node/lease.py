"""How long a state node goes on without a word from its driver. No I/O.

A node that no pipe ties to its driver would outlive one that was killed, or be left behind a network that is
cut. So it has a lease: the driver renews it, with every step of the batch protocol and in between, and a node
whose lease has run out gives up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.errors import FencedError, StateError

SHARE = 4
"""So often is a lease renewed while it is valid: a lost request or two must not end a node."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Valid for `seconds` from each renewal, by any clock that does not go backwards; None: for ever."""

    seconds: float | None = None
    until: float = 0.0
    generation: int = 0
    """Of the newest driver that renewed it."""

    @classmethod
    def starting(cls, seconds: float | None, now: float) -> Lease:
        """That of a node which starts now."""
        return cls(seconds, now + (seconds or 0.0))

    def left(self, now: float) -> float | None:
        """Seconds until it runs out, 0 or less when it has; None when it never does."""
        return None if self.seconds is None else self.until - now

    def has_run_out(self, now: float) -> bool:
        """Whether the node has to give up. That is final, however late the node gets to know."""
        left = self.left(now)
        return left is not None and left <= 0

    def renewed(self, generation: int, now: float) -> Lease:
        """The lease after a request of a driver. Raises FencedError when a newer one has renewed it, and
        StateError when it has run out: what the node had may belong to others by now."""
        if generation < self.generation:
            raise FencedError(
                f"a request of generation {generation} is refused: a driver of generation {self.generation} "
                "has taken over"
            )
        if self.has_run_out(now):
            raise StateError(f"the node has given up: no driver has asked for it for {self.seconds:g} s")
        return replace(self, until=now + (self.seconds or 0.0), generation=generation)
