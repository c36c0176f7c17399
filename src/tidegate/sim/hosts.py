"""Simulated machines: each has a disk of its own, and the links between them may be cut, in one direction or
in both. What is on the wrong side of a cut goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tidegate.sim.disk import SimDisk

STORE = "store"
"""Where the links to the object store lead. It is no host: nothing runs there, and it does not fail."""


class Host:
    """A machine. Whatever runs on it ends with it."""

    def __init__(self, name: str, disk: SimDisk, scratch: Path) -> None:
        """`scratch` is a real folder, for what need not outlive a process."""
        self.name = name
        self.disk = disk
        self.scratch = scratch
        self.leaves = False
        """Whether nodes are to move away from it."""


class Links:
    """What hosts can send to each other, and to the store and back. All of it, unless it was cut."""

    def __init__(self) -> None:
        self.cut: set[tuple[str, str]] = set()
        """From where to where nothing comes through."""

    def carries(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut

    def reach(self, source: str, target: str) -> bool:
        """Whether a request arrives and its answer comes back."""
        return self.carries(source, target) and self.carries(target, source)

    def isolate(self, name: str, others: Iterable[str], *, sends: bool, hears: bool) -> None:
        """Cut a host off from others: what it sends does not arrive there, or it hears nothing of them."""
        for other in others:
            if other != name:
                self.cut |= {(name, other)} if sends else set()
                self.cut |= {(other, name)} if hears else set()
