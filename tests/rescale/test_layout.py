"""Which host each task prefers, and how much state crosses hosts if Spark follows."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.rescale.test_spread import routes
from tidegate.rescale.layout import preferred_hosts
from tidegate.rescale.route import Route
from tidegate.rescale.spread import respread

names = st.lists(st.sampled_from("abc"), min_size=6, max_size=6).map(tuple)


def crossing(route: Route, hosts: tuple[str, ...], ran: tuple[str, ...]) -> int:
    """The key groups whose task ran on another host than their node."""
    pairs = zip(route.owners, route.partitions, strict=True)
    return sum(hosts[owner] != ran[partition] for owner, partition in pairs)


def scheduled(wanted: tuple[str, ...], slots: dict[str, int]) -> tuple[str, ...]:
    """Where tasks run, as Spark does it: each free slot takes a task that prefers its host; if there is none,
    any. All tasks take equally long."""
    left, ran = [*range(len(wanted))], [""] * len(wanted)
    while left:
        free = deque(host for host, count in slots.items() for _ in range(count))
        for strict in (True, False):
            for host in [free.popleft() for _ in range(len(free))]:
                task = next((task for task in left if not strict or wanted[task] == host), None)
                if task is None:
                    free.append(host)
                    continue
                left.remove(task)
                ran[task] = host
    return tuple(ran)


@given(routes(), names)
def test_no_host_has_more_of_the_state_of_a_task_than_the_one_it_prefers(
    route: Route, hosts: tuple[str, ...]
) -> None:
    wanted = preferred_hosts(route, hosts)
    assume(wanted)
    for partition in range(route.parallelism):
        found = Counter(hosts[route.owners[group]] for group in route.groups_in(partition))
        assert found[wanted[partition]] == max(found.values(), default=0)


@given(routes(), st.sampled_from("abc"))
def test_with_all_state_on_one_host_no_task_prefers_any(route: Route, host: str) -> None:
    assert preferred_hosts(route, (host,) * 6) == ()


@given(routes(), st.integers(2, 6), st.integers(1, 12), names)
def test_on_a_spread_route_nothing_crosses_hosts_that_have_slots_for_their_tasks(
    before: Route, nodes: int, partitions: int, hosts: tuple[str, ...]
) -> None:
    assume(nodes <= before.groups)
    route = respread(before, nodes=nodes, partitions=partitions)
    wanted = preferred_hosts(route, hosts)
    assume(wanted)
    assert crossing(route, hosts, scheduled(wanted, Counter(wanted))) == 0


@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 3))
def test_nor_with_as_many_nodes_as_slots_on_each_host(hosts: int, slots: int, waves: int) -> None:
    """However many tasks there are for each slot, as long as they take equally long."""
    where = tuple(f"host-{node % hosts}" for node in range(hosts * slots))
    route = Route.even(64, nodes=len(where), partitions=len(where) * waves)
    assume(route.parallelism == len(where) * waves)
    wanted = preferred_hosts(route, where)
    assert crossing(route, where, scheduled(wanted, Counter(where))) == 0


def test_a_task_that_mixes_nodes_goes_to_the_host_with_more_of_its_key_groups() -> None:
    route = Route(1, (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 1, 2))
    assert preferred_hosts(route, ("a", "b")) == ("a", "b", "b")
