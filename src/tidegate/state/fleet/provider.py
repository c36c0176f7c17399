"""What starts state nodes and ends them, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.state.wire.access import Identity


@dataclass(frozen=True, slots=True)
class NodeHandle:
    """A node that runs. `address` is unix:PATH or host:port."""

    name: str
    address: str
    pid: int


class NodeProvider(Protocol):
    """The nodes of one driver, by number. They end with it."""

    token: str
    """What requests to them carry."""
    identity: Identity | None
    """What connections to them show; None if sockets do without."""

    @property
    def nodes(self) -> tuple[NodeHandle, ...]:
        """A replaced node has a new handle."""

    def grow(self, count: int, *, gently: bool = False) -> None:
        """Have at least `count` nodes. Either all that are missing start or none stays. `gently`: those that
        are there come first."""

    def shrink(self, count: int) -> object:
        """Keep the first `count` nodes."""

    def dead(self) -> list[int]:
        """The nodes that have to be replaced."""

    def replace_all(self, indexes: Sequence[int]) -> object:
        """End these nodes, whatever they are doing, and start others in their place under names of their
        own."""

    def close(self) -> None:
        """End all nodes."""
