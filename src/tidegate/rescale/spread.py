"""Spreading key groups over nodes and Spark partitions: which routes to go to, and what they move.

`respread` is for another number of nodes or partitions: as many groups on one node as on another, by the
fewest moves there can be. `rebalanced` is for the same number: less work for the busiest node, for few bytes.
Both are pure and give the same answer to the same question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import ControlError
from tidegate.rescale.balance import ENOUGH, Balance, Floats, Integers, summed
from tidegate.rescale.route import Route

Load: TypeAlias = Sequence[float] | NDArray[np.float64]
"""Measured accesses of each key group, on any scale."""


def share(route: Route, load: Load) -> tuple[float, ...]:
    """The part of all load that each node bears. Position: the number of the node.

    Without any load, every key group counts the same.

    >>> share(Route(1, (0, 0, 1, 1), (0, 0, 1, 1)), [1, 2, 3, 4])
    (0.3, 0.7)
    """
    weights = _weights(load, route.groups)
    if weights is None:
        weights = np.ones(route.groups)
    if not route.groups:
        return ()
    return tuple((np.bincount(route.owners, weights) / weights.sum()).tolist())


def resumed(
    last: Route | None, groups: int, configured: tuple[int, int] | None, *, nodes: int, partitions: int
) -> Route:
    """The route that a run begins with: that of the last batch, since a rescale outlives a restart; spread
    anew when other numbers of nodes and partitions are configured than were then."""
    kept = configured in (None, (nodes, partitions))
    if last is None or last.groups != groups:  # The first batch, or the first with state or without.
        slots = last.parallelism if last and kept else partitions
        return Route.even(groups, nodes=nodes, partitions=slots) if groups else Route.stateless(slots)
    return last if kept else respread(last, nodes=min(nodes, groups), partitions=partitions)


def respread(route: Route, *, nodes: int, partitions: int, load: Load | None = None) -> Route:
    """The next route, on nodes 0 to `nodes` - 1; the same route if it is that already.

    Each node owns as many groups as another, or one more, by the fewest moves there can be; the load decides
    which groups these are. Each Spark partition works on groups of one node, so there are as many partitions
    as the least multiple of the nodes that is not below `partitions`, but never more than groups. Without
    state there are no groups and no nodes, and just as many partitions as are asked for.
    """
    _check("partition", partitions)
    if not route.groups:
        same = partitions == route.parallelism
        return route if same else Route.stateless(partitions, version=route.version + 1)
    _check("node", nodes, route.groups)
    weights = None if load is None else _weights(load, route.groups)
    owners = _by_number(route, nodes)
    if weights is not None:
        weighed = _by_load(route, nodes, weights)
        if _busiest(weighed, weights) < _busiest(owners, weights):
            owners = weighed
    slots = np.minimum(-(-partitions // nodes), np.bincount(owners))
    places = _places(owners, slots, weights)
    if route.owners == tuple(owners.tolist()) and _serves(route, places, weights):
        return route
    return Route(route.version + 1, tuple(owners.tolist()), tuple(places.tolist()))


def rebalanced(route: Route, *, load: Load, sizes: Sequence[int], limit: int | None = None) -> Route:
    """The next route, on the same nodes, with less load on the busiest; the same one if nothing is gained.

    Steps that lower the load the most per byte go first, and no more than `limit` bytes move in all. The
    number of Spark partitions stays.
    """
    weights = _weights(load, route.groups)
    if weights is None:
        return route
    nodes, before = np.unique(np.asarray(route.owners), return_inverse=True)
    owners = _balanced(before, weights, _sizes(sizes, route.groups), limit)
    if owners is before:
        return route
    loads = summed(owners, weights)
    slots = _slots(max(route.parallelism, len(nodes)), np.bincount(owners), loads)
    places = _places(owners, slots, weights)
    return Route(route.version + 1, tuple(nodes[owners].tolist()), tuple(places.tolist()))


def _check(what: Literal["node", "partition"], count: int, groups: int | None = None) -> None:
    if count < 1:
        raise ControlError(f"{count} {what}s were asked for; ask for 1 or more")
    if groups is not None and count > groups:
        raise ControlError(
            f"{count} {what}s were asked for, but there are only {groups} key groups and each {what} owns at "
            f"least one; ask for at most {groups} {what}s"
        )


def _weights(load: Load, groups: int) -> Floats | None:
    """The load as numbers, or none where nothing was measured."""
    weights = np.asarray(load, np.float64)
    if weights.shape != (groups,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"load must be {groups} numbers from 0 on, one for each key group")
    return weights if weights.any() else None


def _sizes(sizes: Sequence[int], groups: int) -> Integers:
    found = np.asarray(sizes, np.int64)
    if found.shape != (groups,) or (found < 0).any():
        raise ValueError(f"sizes must be {groups} numbers of bytes, one for each key group")
    return found


def _busiest(owners: Integers, weights: Floats) -> float:
    return float(summed(owners, weights).max())


# -- owners: even by number, fewest moves ------------------------------------------------------------------


def _quotas(counts: Integers, nodes: int, loads: Floats) -> Integers:
    """How many groups each node is to own, which is none for those that leave.

    A node keeps no more than what it owns and than what it is to own. So moves are fewest when the nodes that
    own more than an equal part get the groups that are left over; among those, the ones with the least load.
    """
    each, left_over = divmod(int(counts.sum()), nodes)
    quotas = np.zeros_like(counts)
    quotas[:nodes] = each
    quotas[np.lexsort((loads[:nodes], counts[:nodes] <= each))[:left_over]] += 1
    return quotas


def _by_number(route: Route, nodes: int) -> Integers:
    """Owners by number alone: nodes give away their last groups, so that neighbours stay together."""
    owners = np.asarray(route.owners, np.int64)
    counts = np.bincount(owners, minlength=nodes)
    quotas = _quotas(counts, nodes, np.zeros(nodes))
    owners[_ranks(owners) >= quotas[owners]] = np.repeat(
        np.arange(len(counts)), np.maximum(quotas - counts, 0)
    )
    return owners


def _ranks(places: Integers) -> Integers:
    """How many earlier groups have the same place."""
    order = np.argsort(places, kind="stable")
    starts = np.cumsum(np.bincount(places)) - np.bincount(places)
    ranks = np.empty_like(places)
    ranks[order] = np.arange(len(places)) - starts[places[order]]
    return ranks


def _by_load(route: Route, nodes: int, weights: Floats) -> Integers:
    """Owners by load: heaviest groups first, each stays or goes where there will be the least load.

    Nodes that own too little keep all they have; the others keep and give just as many as they must. What a
    node will bear at least is its load so far, and the lightest groups that can still fill it up.
    """
    owners = np.asarray(route.owners, np.int64)
    counts, loads = np.bincount(owners, minlength=nodes), summed(owners, weights, nodes)
    quotas = _quotas(counts, nodes, loads)
    giving = counts > quotas
    lightest = np.argsort(weights, kind="stable")
    lightest = lightest[giving[owners[lightest]]]
    filling = _running(weights[lightest])
    own = {
        int(node): _running(weights[lightest[owners[lightest] == node]]) for node in np.flatnonzero(giving)
    }
    keeps, gives = quotas.tolist(), np.maximum(counts - quotas, 0).tolist()
    room, held = np.maximum(quotas - counts, 0).tolist(), np.where(giving, 0.0, loads).tolist()
    takers = [(held[node] + filling[room[node] - 1], node) for node in range(nodes) if room[node]]
    heapify(takers)
    found = owners.copy()
    for group, source, weight in _listed(lightest[::-1], owners, weights):
        at_least = held[source] + own[source][keeps[source] - 1]
        if not gives[source] or (keeps[source] and at_least <= takers[0][0]):
            keeps[source] -= 1
            held[source] += weight
            continue
        _, target = heappop(takers)
        found[group] = target
        gives[source] -= 1
        room[target] -= 1
        held[target] += weight
        if room[target]:
            heappush(takers, (held[target] + filling[room[target] - 1], target))
    balance = Balance(owners, found, weights, np.ones_like(owners), 0)
    balance.trade()
    return balance.owners


def _running(weights: Floats) -> list[float]:
    """The sum of the first 0, 1, 2... weights."""
    return [0.0, *np.cumsum(weights).tolist()]


def _balanced(before: Integers, weights: Floats, sizes: Integers, limit: int | None) -> Integers:
    """Owners with less load on the busiest node, such that asking again would gain nothing."""
    owners = before
    while True:
        left = None if limit is None else limit - int(sizes[owners != before].sum())
        after = _next_balance(owners, weights, sizes, left)
        if _busiest(after, weights) >= _busiest(owners, weights) * (1 - ENOUGH):
            return owners
        balance = Balance(before, after, weights, sizes, limit)
        balance.undo()
        owners = balance.owners


def _next_balance(owners: Integers, weights: Floats, sizes: Integers, limit: int | None) -> Integers:
    """Owners from here on.

    Many small steps that each are cheap for what they gain may use up the limit, or the room on other nodes,
    before a large one that gains more: so that one is also tried first. The way with fewer bytes is taken,
    unless the other leaves noticeably less load.
    """
    ways = []
    for largest_first in (False, True):
        way = Balance(owners, owners, weights, sizes, limit)
        way.move(largest_first=largest_first)
        ways.append(way)
    enough = min(way.busiest for way in ways) * (1 + ENOUGH)
    return min((way for way in ways if way.busiest <= enough), key=lambda way: way.moved).owners


# -- partitions: each with groups of one node --------------------------------------------------------------


def _slots(total: int, counts: Integers, loads: Floats) -> Integers:
    """Spark partitions for each node, `total` in all: evenly, but never more than the node has groups."""
    # Each node's first one, then each one's second; of those that come to nothing, the idlest nodes' ones.
    rounds = [(nth, -loads[node], node) for node, count in enumerate(counts) for nth in range(count)]
    return np.bincount([node for _, _, node in sorted(rounds)[:total]])


def _places(owners: Integers, slots: Integers, weights: Floats | None) -> Integers:
    """The Spark partition of each group, when each node has so many; evenly by load, or else by number."""
    firsts = np.cumsum(slots) - slots
    if weights is None:
        return firsts[owners] + _ranks(owners) * slots[owners] // np.bincount(owners)[owners]
    found = np.empty_like(owners)
    # Heaviest groups first, each to the partition of its node with the least so far. Groups without load go
    # where there are the fewest groups, lest all of them end up in one.
    slotted = [range(first, first + count) for first, count in zip(firsts, slots, strict=True)]
    busy = [[(0.0, 0, place) for place in places] for places in slotted]
    order = np.argsort(-weights, kind="stable")
    loaded = int(np.count_nonzero(weights))
    for group, owner, weight in _listed(order[:loaded], owners, weights):
        load, count, place = busy[owner][0]
        found[group] = place
        heapreplace(busy[owner], (load + weight, count + 1, place))
    idle = [[(count, place) for _, count, place in heap] for heap in busy]
    for heap in idle:
        heapify(heap)
    for group, owner, _ in _listed(order[loaded:], owners, weights):
        count, place = idle[owner][0]
        found[group] = place
        heapreplace(idle[owner], (count + 1, place))
    return found


def _listed(groups: Integers, owners: Integers, weights: Floats) -> Iterable[tuple[int, int, float]]:
    return zip(groups.tolist(), owners[groups].tolist(), weights[groups].tolist(), strict=True)


def _serves(route: Route, places: Integers, weights: Floats | None) -> bool:
    """Whether the partitions that the route has are no worse than these."""
    owners = np.asarray(route.owners, np.int64)
    has, wanted = (_evenness(owners, at, weights) for at in (np.asarray(route.partitions, np.int64), places))
    return len(has) == len(wanted) and all(
        old[0] == new[0] and old[1:] <= new[1:] for old, new in zip(has, wanted, strict=True)
    )


def _evenness(owners: Integers, places: Integers, weights: Floats | None) -> list[tuple[int, float, float]]:
    """For each node its partitions, the load of the busiest, and that of the idlest (negative).

    Empty when a partition has no groups, or groups of two nodes.
    """
    loads = np.bincount(places, weights)
    nodes = np.full(len(loads), -1)
    nodes[places] = owners
    if (nodes < 0).any() or (nodes[places] != owners).any():
        return []
    slots = np.bincount(nodes)
    firsts, loads = np.cumsum(slots) - slots, loads[np.argsort(nodes, kind="stable")]
    most, least = np.maximum.reduceat(loads, firsts), np.minimum.reduceat(loads, firsts)
    return list(zip(slots.tolist(), most.tolist(), (-least).tolist(), strict=True))
