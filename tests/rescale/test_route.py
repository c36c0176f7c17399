"""The route: what it says of nodes and partitions, and its way through the ledger."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CheckpointError
from tidegate.rescale.route import Route

routes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=64).map(
    lambda pairs: Route(3, tuple(owner for owner, _ in pairs), tuple(place for _, place in pairs))
)


@given(routes)
def test_a_route_comes_back_from_the_ledger_as_it_was(route: Route) -> None:
    assert Route.from_json(json.loads(json.dumps(route.to_json()))) == route


@given(st.integers(1, 100), st.integers(1, 9))
def test_a_route_without_key_groups_is_a_number_of_partitions(partitions: int, version: int) -> None:
    route = Route.stateless(partitions, version=version)
    assert (route.groups, route.nodes, route.parallelism) == (0, (), partitions)
    assert Route.from_json(json.loads(json.dumps(route.to_json()))) == route
    assert pickle.loads(pickle.dumps(route)) == route


@given(routes)
def test_each_group_is_where_the_route_says(route: Route) -> None:
    for group, (owner, place) in enumerate(zip(route.owners, route.partitions, strict=True)):
        assert [node for node in range(7) if group in route.groups_of(node)] == [owner]
        assert [other for other in range(11) if group in route.groups_in(other)] == [place]
        assert place in route.partitions_on(owner)
    assert sum(len(route.groups_of(node)) for node in route.nodes) == route.groups
    assert all(route.groups_of(node) for node in route.nodes)
    assert all(
        route.groups_in(place) & route.groups_of(node)
        for node in route.nodes
        for place in route.partitions_on(node)
    )


def test_a_node_or_partition_that_is_not_there_has_no_groups() -> None:
    route = Route.even(8, nodes=2, partitions=4)
    assert route.groups_of(2) == route.groups_in(4) == route.partitions_on(2) == frozenset()


@given(st.integers(0, 8), st.integers(1, 12), st.integers(1, 5))
def test_an_even_route_has_each_partition_on_one_node(exponent: int, nodes: int, factor: int) -> None:
    groups = 2**exponent
    route = Route.even(groups, nodes=nodes, partitions=nodes * factor)
    assert route.version == 1
    assert route.nodes == tuple(range(min(nodes, groups)))
    assert route.parallelism == min(nodes * factor, groups)
    sizes = {len(route.groups_of(node)) for node in route.nodes}
    assert max(sizes) - min(sizes) <= 1
    if nodes * factor <= groups:
        assert sum(len(route.partitions_on(node)) for node in route.nodes) == route.parallelism


def test_what_can_be_worked_out_again_does_not_travel() -> None:
    route = Route.even(1024, nodes=4, partitions=16)
    small = len(pickle.dumps(route))
    assert route.nodes == (0, 1, 2, 3)
    assert len(route.groups_of(0)) == len(route.groups_in(0)) * 4
    assert len(pickle.dumps(route)) == small
    assert pickle.loads(pickle.dumps(route)) == route


@pytest.mark.parametrize(
    ("table", "places", "problem"),
    [
        ("owners", {"0": "0-3", "1": "3-7"}, "key group 3 has more than one owner"),
        ("owners", {"0": "0-3", "1": "5-7"}, "key group 4 has no owner"),
        ("partitions", {"0": "0-5", "1": "7"}, "key group 6 has no partition"),
        ("partitions", {"0": "0-5", "1": "6"}, "8 key groups have an owner and 7 a partition"),
    ],
)
def test_a_damaged_route_is_told_and_not_taken(table: str, places: dict[str, str], problem: str) -> None:
    form: dict[str, Any] = {**Route.even(8, nodes=2, partitions=2).to_json(), table: places}
    with pytest.raises(CheckpointError, match=problem):
        Route.from_json(form)
