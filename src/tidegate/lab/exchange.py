"""Packets on their way between hosts, each released when its link says."""

from __future__ import annotations

import heapq
from random import Random

from tidegate.lab.link import Line, Link


class Exchange:
    """Takes packets and gives them back when they are due. Hosts are named by their addresses, as packets
    name them."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._lines: dict[bytes, dict[bytes, Line]] = {}
        self._waiting: list[tuple[float, int, bytes, bytes]] = []
        self._taken = 0

    def shape(self, source: bytes, target: bytes, link: Link) -> None:
        """From now on; what is on its way arrives as it would have."""
        self._lines.setdefault(source, {}).setdefault(target, Line(link)).link = link

    def whole(self, source: bytes) -> bool:
        """Whether any link from there must see single packets."""
        return any(line.link.whole for line in self._lines.get(source, {}).values())

    def take(self, now: float, source: bytes, target: bytes, packet: bytes) -> None:
        """A packet that a host has sent; one to an address that no link leads to is dropped."""
        line = self._lines.get(source, {}).get(target)
        if line is None:
            return
        arrives = line.arrival(now, len(packet), self._chance)
        if arrives is not None:
            self._taken += 1
            heapq.heappush(self._waiting, (arrives, self._taken, target, packet))

    @property
    def next(self) -> float | None:
        """When the next packet is due."""
        return self._waiting[0][0] if self._waiting else None

    def release(self, now: float) -> list[tuple[bytes, bytes]]:
        """What is due, as (target, packet), in the order of arrival."""
        due = []
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            due.append((target, packet))
        return due
