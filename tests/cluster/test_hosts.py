"""The names that Spark has for the hosts of state nodes."""

from __future__ import annotations

from tidegate.cluster.hosts import HostNames, addresses_of

ADDRESSES = {"one.example": {"10.0.0.1"}, "10.0.0.1": {"10.0.0.1"}, "10.0.0.2": {"10.0.0.2"}}


class Cluster:
    """Executors that come, and how often somebody asked for them."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = frozenset(hosts)
        self.asked = 0

    def __call__(self) -> frozenset[str]:
        self.asked += 1
        return self.hosts


def addresses(host: str) -> frozenset[str]:
    return frozenset(ADDRESSES.get(host, ()))


def test_a_host_has_the_name_of_its_executor() -> None:
    names = HostNames(Cluster("10.0.0.1", "two"), addresses)
    assert names.of(("two", "one.example", "two")) == ("two", "10.0.0.1", "two")


def test_what_is_known_is_not_asked_again() -> None:
    cluster = Cluster("10.0.0.1")
    names = HostNames(cluster, addresses)
    assert [names.of(("one.example",)) for _ in range(3)] == [("10.0.0.1",)] * 3
    assert names.of(()) == ()
    assert cluster.asked == 1


def test_a_host_has_no_name_until_it_has_an_executor() -> None:
    cluster = Cluster("10.0.0.2")
    names = HostNames(cluster, addresses)
    assert names.of(("one.example", "10.0.0.2")) == ("", "10.0.0.2")
    cluster.hosts |= {"10.0.0.1"}
    assert names.of(("one.example", "10.0.0.2")) == ("10.0.0.1", "10.0.0.2")


def test_there_is_nothing_to_prefer_where_no_host_has_an_executor() -> None:
    names = HostNames(Cluster("10.0.0.2"), addresses)
    assert names.of(("one.example", "elsewhere")) == ()


def test_two_names_that_nobody_knows_are_not_taken_for_the_same_host() -> None:
    assert HostNames(Cluster("what"), addresses).of(("ever",)) == ()


def test_addresses_are_found_by_name_and_by_address() -> None:
    assert "127.0.0.1" in addresses_of("localhost") & addresses_of("127.0.0.1")
    assert addresses_of("no such host") == frozenset()
