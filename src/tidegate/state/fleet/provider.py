"""What starts state nodes and ends them, wherever they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.security.security import Security


@dataclass(frozen=True, slots=True)
class NodeHandle:
    """A node that runs. `address` is unix:PATH or host:port."""

    name: str
    address: str
    pid: int
    host: str
    """The machine that it runs on: a name or an address, the same for all nodes there."""


class NodeProvider(Protocol):
    """The nodes of one driver, by number. They end with it."""

    security: Security
    """The driver's."""

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

    def leaving(self, *, now: bool = False) -> frozenset[int]:
        """The nodes on machines that are going away, as was last known, or as it is `now`."""

    def stand_in(self, indexes: Iterable[int]) -> None:
        """Have another node, on a machine that stays, beside each of these, to take its place."""

    def take_over(self) -> dict[int, NodeHandle]:
        """The nodes that stand by are in their places from now on; which ones were there, by number. Those go
        on until `retire`."""

    def retire(self) -> None:
        """End the nodes whose places were taken."""

    def cancel(self) -> None:
        """End the nodes that stand by."""

    @property
    def retiring(self) -> tuple[NodeHandle, ...]:
        """Those whose places were taken and that have not ended."""

    def close(self) -> None:
        """End all nodes."""
