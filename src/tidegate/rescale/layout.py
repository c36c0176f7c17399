"""Where Spark's tasks should run, so that the state they work on is on their own host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from tidegate.rescale.route import Route


@lru_cache(maxsize=16)
def preferred_hosts(route: Route, hosts: Sequence[str]) -> tuple[str, ...]:
    """For each Spark partition the host with most of its key groups, given that of each node.

    Empty when the state is all on one host: then there is no better place, and preferring that host would
    keep the tasks from all others.

    >>> preferred_hosts(Route.even(8, nodes=2, partitions=4), ("a", "b"))
    ('a', 'a', 'b', 'b')
    """
    if len({hosts[node] for node in route.nodes}) == 1:
        return ()
    return tuple(_home(route, hosts, partition) for partition in range(route.parallelism))


def _home(route: Route, hosts: Sequence[str], partition: int) -> str:
    found = Counter(hosts[route.owners[group]] for group in sorted(route.groups_in(partition)))
    return max(found, key=found.__getitem__, default="")
