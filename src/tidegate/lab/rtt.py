"""Round trips between hosts as they are, against what the links promise."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.lab.host import PYTHON, Host, entered
from tidegate.lab.inside import pinging
from tidegate.lab.link import Link

if TYPE_CHECKING:
    from tidegate.lab.lab import Lab

Pair = tuple[str, str]
TOLERANCE = 0.001
"""Seconds."""
_PACKET = 84
_COUNT = 20
_WAIT = 0.1


def expected(links: Mapping[Pair, Link], pair: Pair) -> float | None:
    """The seconds that a round trip takes on average; None if none comes back.

    >>> near_far = {("a", "b"): Link(delay=0.0125), ("b", "a"): Link()}
    >>> expected(near_far, ("a", "b")), expected({**near_far, ("b", "a"): Link(cut=True)}, ("a", "b"))
    (0.0125, None)
    """
    there, back = links[pair], links[pair[::-1]]
    if there.cut or back.cut or 1.0 in (there.loss, back.loss):
        return None
    return there.seconds(_PACKET) + back.seconds(_PACKET)


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """The result of a check."""

    measured: Mapping[Pair, float | None]
    """The median per pair of hosts; None where nothing came back."""
    expected: Mapping[Pair, float | None]
    slack: Mapping[Pair, float]
    """What jitter may add or take."""

    @property
    def error(self) -> float:
        """By how many seconds the worst of them is off; infinite if nothing came back that should have."""
        return max((self._off(pair) for pair in self.expected), default=0.0)

    @property
    def good(self) -> bool:
        return self.error < TOLERANCE

    def _off(self, pair: Pair) -> float:
        measured, wanted = self.measured[pair], self.expected[pair]
        if wanted is None or measured is None:
            return 0.0 if wanted is measured else float("inf")
        return max(0.0, abs(measured - wanted) - self.slack[pair])


def measure(lab: Lab) -> RoundTrips:
    """Between all hosts that are up, while more programs want the CPU than there are."""
    up = [host for host in lab.hosts.values() if host.alive]
    pairs = [(source.name, target.name) for source in up for target in up if source is not target]
    links = lab.links
    wanted = {pair: expected(links, pair) for pair in pairs}
    slack = {pair: links[pair].jitter + links[pair[::-1]].jitter for pair in pairs}
    order = {
        "targets": [host.address for host in up],
        "count": _COUNT,
        "wait": _WAIT + max(((trip or 0.0) + slack[pair] for pair, trip in wanted.items()), default=0.0),
    }
    # On a host, so that nothing is left of it if the lab is killed meanwhile.
    spinning = ["-c", "while True: pass"]
    busy = [_start(up[0], spinning) for _ in range((os.cpu_count() or 1) + 1) if up]
    try:
        asked = {host.name: _start(host, [str(pinging.__file__), json.dumps(order)]) for host in up}
        told = {name: json.loads(ping.communicate()[0] or "{}") for name, ping in asked.items()}
    finally:
        for process in busy:
            process.kill()
            process.communicate()
    trips = {pair: told[pair[0]].get(lab[pair[1]].address) for pair in pairs}
    measured = {pair: statistics.median(each) if each else None for pair, each in trips.items()}
    return RoundTrips(measured, wanted, slack)


def _start(host: Host, program: Sequence[str]) -> subprocess.Popen[bytes]:
    """Outside of the host's limits, which are none of the network's."""
    command = entered(host.pid, (), [*PYTHON, *program], "/")
    # Ctrl-C is the lab's to handle.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
