"""Routes for other numbers of nodes and partitions, and for another spread of the load."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tidegate.errors import ControlError
from tidegate.rescale.route import Move, Route, moves
from tidegate.rescale.spread import rebalanced, respread, resumed, share


def routes(most: int = 48, nodes: int = 6) -> st.SearchStrategy[Route]:
    """Any route: as uneven as can be, with partitions that mix nodes or have no groups."""
    pairs = st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, 7)), min_size=1, max_size=most)
    return pairs.map(lambda found: Route(4, tuple(o for o, _ in found), tuple(p for _, p in found)))


weights = st.one_of(
    st.lists(st.integers(0, 50).map(float), min_size=48, max_size=48),
    st.lists(st.floats(0, 1e6), min_size=48, max_size=48),
    st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 300.0]), min_size=48, max_size=48),
)
sizes = st.lists(st.integers(0, 1000), min_size=48, max_size=48)


def busiest(route: Route, load: list[float]) -> float:
    return max(share(route, load))


def fewest(route: Route, nodes: int) -> int:
    """By trying who gets one group more than the others."""
    counts = Counter(route.owners)
    each, left_over = divmod(route.groups, nodes)
    kept = (
        sum(min(counts[node], each + (node in more)) for node in range(nodes))
        for more in combinations(range(nodes), left_over)
    )
    return route.groups - max(kept)


# -- without state, and the first route of a run -----------------------------------------------------------


def test_without_key_groups_there_are_as_many_partitions_as_asked_for() -> None:
    route = Route.stateless(2, version=5)
    assert respread(route, nodes=0, partitions=3) == Route.stateless(3, version=6)
    assert respread(route, nodes=0, partitions=2) is route
    assert share(route, []) == ()
    with pytest.raises(ControlError, match="0 partitions were asked for"):
        respread(route, nodes=0, partitions=0)


@pytest.mark.parametrize(
    ("last", "groups", "partitions", "wanted"),
    [
        (None, 0, 2, Route.stateless(2)),
        (None, 8, 2, Route.even(8, nodes=2, partitions=2)),
        (Route.stateless(5, version=3), 0, 2, Route.stateless(5, version=3)),
        (Route.stateless(5, version=3), 0, 4, Route.stateless(4, version=4)),
        (Route.stateless(4, version=3), 8, 2, Route.even(8, nodes=2, partitions=4)),
        (Route.stateless(4, version=3), 8, 1, Route.even(8, nodes=2, partitions=1)),
        (Route.even(8, nodes=2, partitions=6), 0, 2, Route.stateless(6)),
    ],
)
def test_a_run_resumes_with_the_parallelism_of_the_last_rescale(
    last: Route | None, groups: int, partitions: int, wanted: Route
) -> None:
    """Unless another one is configured than before, which was 2; also with the first state of a pipeline."""
    assert resumed(last, groups, (2, 2), nodes=2, partitions=partitions) == wanted


# -- another number of nodes -------------------------------------------------------------------------------


@given(routes(), st.integers(1, 9), st.integers(1, 30), st.none() | weights)
def test_nodes_own_equally_many_groups_by_the_fewest_moves(
    route: Route, nodes: int, partitions: int, load: list[float] | None
) -> None:
    assume(nodes <= route.groups)
    load = load and load[: route.groups]
    after = respread(route, nodes=nodes, partitions=partitions, load=load)
    counts = [len(after.groups_of(node)) for node in range(nodes)]
    assert sum(counts) == route.groups
    assert max(counts) - min(counts) <= 1
    assert len(moves(route, after)) == fewest(route, nodes)


@settings(max_examples=40)
@given(routes(most=7, nodes=4), st.integers(1, 4), weights)
def test_no_even_spread_at_all_has_fewer_moves(route: Route, nodes: int, load: list[float]) -> None:
    assume(nodes <= route.groups)
    even = (
        owners
        for owners in product(range(nodes), repeat=route.groups)
        if len(counts := Counter(owners)) == nodes and max(counts.values()) - min(counts.values()) <= 1
    )
    least = min(sum(a != b for a, b in zip(owners, route.owners, strict=True)) for owners in even)
    for given_load in (None, load[: route.groups]):
        assert len(moves(route, respread(route, nodes=nodes, partitions=1, load=given_load))) == least


@given(routes(), st.integers(1, 9), st.integers(1, 60), st.none() | weights)
def test_each_partition_has_groups_and_all_of_one_node(
    route: Route, nodes: int, partitions: int, load: list[float] | None
) -> None:
    assume(nodes <= route.groups)
    after = respread(route, nodes=nodes, partitions=partitions, load=load and load[: route.groups])
    pairs = set(zip(after.partitions, after.owners, strict=True))
    assert sorted(place for place, _ in pairs) == list(range(after.parallelism))
    assert min(partitions, route.groups) <= after.parallelism <= route.groups
    each = -(-partitions // nodes)
    for node in range(nodes):
        assert len(after.partitions_on(node)) == min(each, len(after.groups_of(node)))
    if each * nodes <= route.groups:
        assert after.parallelism == each * nodes


@given(routes(), st.integers(1, 9), st.integers(1, 60))
def test_without_load_the_partitions_of_a_node_have_equally_many_groups(
    route: Route, nodes: int, partitions: int
) -> None:
    assume(nodes <= route.groups)
    after = respread(route, nodes=nodes, partitions=partitions)
    for node in range(nodes):
        counts = [len(after.groups_in(place)) for place in after.partitions_on(node)]
        assert max(counts) - min(counts) <= 1


@given(st.integers(1, 16), weights)
def test_groups_go_to_the_partition_with_the_least_load(partitions: int, load: list[float]) -> None:
    """So without its lightest group, no partition bears more than another."""
    after = respread(Route(1, (0,) * 48, (0,) * 48), nodes=1, partitions=partitions, load=load)
    places = [[load[group] for group in after.groups_in(place)] for place in range(partitions)]
    idlest = min(map(sum, places))
    for place in places:
        lightest = min(filter(None, place), default=0.0)
        assert sum(place) - lightest <= idlest * (1 + 1e-9)


def test_groups_without_load_do_not_all_end_up_in_one_partition() -> None:
    load = [5.0, 3.0] + [0.0] * 30
    after = respread(Route.even(32, nodes=1, partitions=1), nodes=1, partitions=4, load=load)
    assert sorted(len(after.groups_in(place)) for place in range(4)) == [8, 8, 8, 8]


@given(
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 40), st.booleans()), max_size=8),
    weights,
)
def test_scaling_out_and_in_over_and_over(
    exponent: int, path: list[tuple[int, int, bool]], load: list[float]
) -> None:
    route = Route.even(2**exponent, nodes=1, partitions=1)
    for nodes, partitions, weighed in path:
        known = (load * 2)[: route.groups] if weighed else None
        if nodes > route.groups:
            with pytest.raises(ControlError):
                respread(route, nodes=nodes, partitions=partitions, load=known)
            continue
        after = respread(route, nodes=nodes, partitions=partitions, load=known)
        assert len(moves(route, after)) == fewest(route, nodes)
        assert after.nodes == tuple(range(nodes))
        assert after.version == route.version + (after is not route)
        assert sum(len(after.partitions_on(node)) for node in after.nodes) == after.parallelism
        assert respread(after, nodes=nodes, partitions=partitions, load=known) is after
        route = after


@given(st.integers(0, 8), st.integers(1, 16), st.integers(1, 6))
def test_an_even_route_is_left_as_it_is(exponent: int, nodes: int, factor: int) -> None:
    assume(nodes * factor <= 2**exponent)
    route = Route.even(2**exponent, nodes=nodes, partitions=nodes * factor)
    assert respread(route, nodes=nodes, partitions=nodes * factor) is route


@given(routes(), st.integers(1, 9), st.integers(1, 30), st.none() | weights)
def test_asking_twice_changes_nothing(
    route: Route, nodes: int, partitions: int, load: list[float] | None
) -> None:
    assume(nodes <= route.groups)
    load = load and load[: route.groups]
    after = respread(route, nodes=nodes, partitions=partitions, load=load)
    assert after.version == route.version + (after is not route)
    assert (after is route) == ((after.owners, after.partitions) == (route.owners, route.partitions))
    assert respread(after, nodes=nodes, partitions=partitions, load=load) is after
    assert respread(route, nodes=nodes, partitions=partitions, load=load) == after


@given(routes(), st.integers(1, 9), weights)
def test_knowing_the_load_never_leaves_the_busiest_node_with_more(
    route: Route, nodes: int, load: list[float]
) -> None:
    assume(nodes <= route.groups)
    load = load[: route.groups]
    blind = respread(route, nodes=nodes, partitions=nodes)
    seeing = respread(route, nodes=nodes, partitions=nodes, load=load)
    assert busiest(seeing, load) <= busiest(blind, load)
    assert len(moves(route, seeing)) == len(moves(route, blind))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (3, 4), (8, 16)])
def test_a_skewed_load_is_shared_well_when_scaling_out(seed: int, before: int, after: int) -> None:
    """Close to what no spread can beat: an even share, the least that nodes must keep, the hottest group."""
    load = np.random.default_rng(seed).lognormal(0, 1, 256)
    route = Route.even(256, nodes=before, partitions=before)
    spread = respread(route, nodes=after, partitions=after, load=load)
    each = 256 // after
    kept = [np.sort(load[sorted(route.groups_of(node))])[:each].sum() for node in route.nodes]
    with_hottest = load.max() + np.sort(load)[: each - 1].sum()
    assert max(share(spread, load)) * load.sum() <= 1.05 * max(load.sum() / after, *kept, with_hottest)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 8), (16, 32)])
def test_the_load_of_very_many_groups_is_shared_almost_evenly(before: int, after: int) -> None:
    part = np.linspace(0.5, 1.5, 16384 // before)
    load = np.tile(part / part.sum(), before)
    route = Route.even(16384, nodes=before, partitions=before)
    assert max(share(respread(route, nodes=after, partitions=after), load)) > 1.2 / after
    assert max(share(respread(route, nodes=after, partitions=after, load=load), load)) <= 1.01 / after


def test_a_hot_group_gets_a_node_with_the_least_besides() -> None:
    load = [100.0] + [1.0] * 7 + [3.0] * 8
    after = respread(Route.even(16, nodes=1, partitions=1), nodes=2, partitions=2, load=load)
    hot = after.groups_of(after.owners[0])
    assert sum(load[group] for group in hot) == 107


def test_groups_change_places_where_one_after_another_went_wrong() -> None:
    load = [9.0, 8.0, 1.0, 8.0, 2.0, 2.0]
    after = respread(Route.even(6, nodes=2, partitions=2), nodes=3, partitions=3, load=load)
    assert share(after, load) == pytest.approx([1 / 3] * 3)


def test_nodes_that_leave_give_everything_to_those_with_little_to_do() -> None:
    route = Route(1, (0, 0, 1, 1, 2, 2, 2, 2), (0, 0, 1, 1, 2, 2, 2, 2))
    load = [9.0, 9.0, 1.0, 1.0, 5.0, 4.0, 1.0, 1.0]
    after = respread(route, nodes=2, partitions=2, load=load)
    assert after.owners == (0, 0, 1, 1, 1, 1, 0, 0)


def test_neighbours_stay_together_where_nothing_is_known_of_the_load() -> None:
    after = respread(Route.even(16, nodes=2, partitions=2), nodes=4, partitions=4)
    assert after.owners == (0, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 3)
    assert after.partitions == after.owners


@pytest.mark.parametrize(
    ("nodes", "partitions", "message"),
    [
        (9, 9, "9 nodes were asked for, but there are only 8 key groups.*at most 8 nodes"),
        (0, 4, "0 nodes were asked for"),
        (2, -1, "-1 partitions were asked for"),
    ],
)
def test_what_cannot_be_is_refused(nodes: int, partitions: int, message: str) -> None:
    with pytest.raises(ControlError, match=message):
        respread(Route.even(8, nodes=2, partitions=2), nodes=nodes, partitions=partitions)


@pytest.mark.parametrize("load", [[1.0] * 7, [1.0] * 7 + [-1.0], [1.0] * 7 + [float("nan")]])
def test_load_that_is_none_is_refused(load: list[float]) -> None:
    route = Route.even(8, nodes=2, partitions=2)
    with pytest.raises(ValueError, match="load must be 8 numbers"):
        respread(route, nodes=2, partitions=2, load=load)
    with pytest.raises(ValueError, match="load must be 8 numbers"):
        share(route, load)


# -- the same nodes, another load --------------------------------------------------------------------------


@given(routes(), weights, sizes, st.none() | st.integers(0, 3000))
def test_the_busiest_node_never_gets_more_and_the_limit_holds(
    route: Route, load: list[float], held: list[int], limit: int | None
) -> None:
    load, held = load[: route.groups], held[: route.groups]
    after = rebalanced(route, load=load, sizes=held, limit=limit)
    moved = moves(route, after)
    if after is route:
        return
    assert moved
    assert after.version == route.version + 1
    assert busiest(after, load) < busiest(route, load)
    assert limit is None or sum(held[move.group] for move in moved) <= limit
    assert after.nodes == route.nodes
    assert after.parallelism == max(route.parallelism, len(route.nodes)) or route.parallelism > route.groups
    pairs = set(zip(after.partitions, after.owners, strict=True))
    assert sorted(place for place, _ in pairs) == list(range(after.parallelism))


@given(routes(), weights, sizes, st.none() | st.integers(0, 3000))
def test_it_does_about_as_well_as_any_one_move_and_better_where_it_can(
    route: Route, load: list[float], held: list[int], limit: int | None
) -> None:
    load, held = load[: route.groups], held[: route.groups]
    after = rebalanced(route, load=load, sizes=held, limit=limit)
    before = share(route, load)
    for group, target in product(route.groups_of(before.index(max(before))), route.nodes):
        if limit is None or held[group] <= limit:
            single = moved_by_hand(route, group, target)
            assert busiest(after, load) <= busiest(single, load) * 1.01


def moved_by_hand(route: Route, group: int, target: int) -> Route:
    owners = list(route.owners)
    owners[group] = target
    return Route(route.version + 1, tuple(owners), route.partitions)


@given(routes(), weights, sizes, st.none() | st.integers(0, 3000))
def test_no_move_is_in_vain(route: Route, load: list[float], held: list[int], limit: int | None) -> None:
    load, held = load[: route.groups], held[: route.groups]
    after = rebalanced(route, load=load, sizes=held, limit=limit)
    for move in moves(route, after):
        back = moved_by_hand(after, move.group, move.source)
        assert busiest(back, load) > busiest(after, load) or back.nodes != route.nodes


@given(routes(), weights, sizes)
def test_rebalancing_comes_to_rest(route: Route, load: list[float], held: list[int]) -> None:
    load, held = load[: route.groups], held[: route.groups]
    first = rebalanced(route, load=load, sizes=held)
    assert rebalanced(route, load=load, sizes=held) == first
    assert rebalanced(first, load=load, sizes=held) is first


def test_swaps_help_where_no_move_does() -> None:
    route = Route.even(4, nodes=2, partitions=2)
    load = [6.0, 4.0, 4.0, 2.0]
    after = rebalanced(route, load=load, sizes=[1] * 4)
    assert share(after, load) == (0.5, 0.5)
    assert rebalanced(route, load=load, sizes=[1] * 4, limit=1) is route


def test_groups_with_much_load_and_few_bytes_go_first() -> None:
    route = Route.even(8, nodes=2, partitions=2)
    load = [4.0, 4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 2.0]
    after = rebalanced(route, load=load, sizes=[900, 100, 500, 700, 1, 1, 1, 1])
    assert moves(route, after) == (Move(1, 0, 1),)


@pytest.mark.parametrize(
    ("owners", "load", "gone"),
    [((0, 0, 1), [6.0, 6.0, 4.0], {1}), ((0, 0, 0, 1), [4.0, 4.0, 2.0, 6.0], {2})],
)
def test_of_moves_that_gain_the_same_the_smaller_group_goes(
    owners: tuple[int, ...], load: list[float], gone: set[int]
) -> None:
    route = Route(1, owners, owners)
    after = rebalanced(route, load=load, sizes=[900, 100, 100, 10][: len(owners)])
    assert {move.group for move in moves(route, after)} == gone


def test_of_swaps_that_gain_the_same_the_smaller_groups_go() -> None:
    route = Route(1, (0, 0, 1, 1, 1), (0, 0, 1, 1, 1))
    load = [10.0, 10.0, 4.0, 4.0, 8.0]
    after = rebalanced(route, load=load, sizes=[900, 100, 700, 70, 7])
    assert share(after, load)[0] == 0.5
    assert {move.group for move in moves(route, after)} == {1, 4}


def test_cheap_moves_do_not_use_up_the_limit_for_one_that_gains_more() -> None:
    route = Route(1, (0,) * 10 + (1,), (0,) * 10 + (1,))
    load = [40.0, 40.0] + [0.9] * 8 + [0.0]
    after = rebalanced(route, load=load, sizes=[100, 100] + [2] * 8 + [0], limit=100)
    assert moves(route, after) == (Move(0, 0, 1),)


def test_a_hot_group_that_outweighs_all_stays_where_it_is() -> None:
    route = Route.even(8, nodes=4, partitions=4)
    assert rebalanced(route, load=[0.0] * 5 + [100.0, 0.0, 0.0], sizes=[1] * 8) is route
    after = rebalanced(route, load=[1.0] * 4 + [90.0, 1000.0] + [20.0] * 2, sizes=[1] * 8)
    assert [move.group for move in moves(route, after)] == [4]


def test_lowering_one_of_two_busiest_nodes_is_in_vain_when_the_other_cannot_be() -> None:
    route = Route(1, (0, 0, 1, 2), (0, 0, 1, 2))
    assert rebalanced(route, load=[5.0, 5.0, 10.0, 1.0], sizes=[1] * 4) is route


@given(routes(), sizes)
def test_without_load_nothing_moves(route: Route, held: list[int]) -> None:
    assert rebalanced(route, load=[0.0] * route.groups, sizes=held[: route.groups]) is route


@pytest.mark.parametrize("held", [[1] * 7, [1] * 7 + [-1]])
def test_sizes_that_are_none_are_refused(held: list[int]) -> None:
    route = Route.even(8, nodes=2, partitions=2)
    with pytest.raises(ValueError, match="sizes must be 8 numbers"):
        rebalanced(route, load=[1.0] * 8, sizes=held)


# -- what a route means ------------------------------------------------------------------------------------


@given(routes(), weights)
@example(Route(1, (0, 2), (0, 1)), [0.0] * 48)
def test_shares_are_parts_of_the_whole(route: Route, load: list[float]) -> None:
    found = share(route, load[: route.groups])
    assert sum(found) == pytest.approx(1)
    assert all(0 <= part <= 1 for part in found)
    assert len(found) == max(route.owners) + 1


def test_where_nothing_is_known_groups_count_the_same() -> None:
    assert share(Route(1, (0, 0, 0, 2), (0, 0, 0, 1)), [0.0] * 4) == (0.75, 0.0, 0.25)


def test_moves_tell_which_group_goes_where() -> None:
    before, after = Route(1, (0, 0, 1, 1), (0, 0, 1, 1)), Route(2, (0, 2, 1, 0), (0, 2, 1, 0))
    assert moves(before, after) == (Move(1, 0, 2), Move(3, 1, 0))
    assert moves(before, before) == ()
