"""Which hosts nodes are placed on. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def placed(count: int, hosts: Sequence[str], taken: Iterable[str]) -> list[str]:
    """The hosts of so many new nodes: each goes to the one with the fewest nodes, to the first of several.

    `taken` are the hosts of the nodes that are there. A host that is named twice has twice the room.

    >>> placed(4, ["a", "b", "c"], ["b"])
    ['a', 'c', 'a', 'b']
    >>> placed(4, ["a", "a", "b"], [])
    ['a', 'b', 'a', 'a']
    """
    nodes, room, found = Counter(taken), Counter(hosts), list[str]()
    for _ in range(count):
        host = min(hosts, key=lambda host: nodes[host] / room[host])
        nodes[host] += 1
        found.append(host)
    return found
