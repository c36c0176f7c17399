"""Where nodes run and how they are started there: the seam between a fleet and machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegate.state.fleet.provider import NodeHandle


class Running(Protocol):
    """A node that was started."""

    @property
    def handle(self) -> NodeHandle: ...

    @property
    def alive(self) -> bool:
        """False if its process is known to be gone."""

    def request_end(self) -> None:
        """Have it end by itself, without waiting for that. Does not raise."""

    def end(self, seconds: float) -> None:
        """See it gone, whatever it is doing: it has so long to end by itself. A node on a machine that cannot
        be reached is left to its lease. Does not raise."""


class Launcher(Protocol):
    """Starts nodes on hosts, which it names as it likes. May be called by several threads at once."""

    def hosts(self) -> Sequence[str]:
        """Where nodes may be started now, the first choice first; one with more room may be there several
        times."""

    def leaving(self) -> frozenset[str]:
        """Hosts that are going away, as far as can be known soon: their nodes are to move."""

    def start(self, name: str, host: str, *, gently: bool = False) -> Running:
        """A node that listens; `gently`: it leaves the machine to others until then.

        Raises HostError when the host cannot be reached: another one may do. Any other error is final.
        """

    def renew(self) -> None:
        """Have what was started on other machines, beside nodes, go on. Does not raise."""

    def lost(self, host: str) -> None:
        """A host is out of reach: its nodes are. Does not raise."""

    def close(self) -> None:
        """No node runs any more. May be called again, and nodes be started again afterwards."""
