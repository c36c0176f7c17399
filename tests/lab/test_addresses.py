from __future__ import annotations

from tidegate.lab.addresses import MOST_HOSTS, NETWORK, addresses, hosts_file


def test_every_host_has_an_address_of_its_own_in_one_network() -> None:
    given = addresses([f"h{number}" for number in range(MOST_HOSTS)])
    assert len(set(given.values())) == MOST_HOSTS
    assert NETWORK == 24
    assert {address.rpartition(".")[0] for address in given.values()} == {"10.77.0"}
    assert not {"10.77.0.0", "10.77.0.255"} & set(given.values())


def test_hosts_find_each_other_by_name() -> None:
    assert hosts_file({"near": "10.77.0.1"}).splitlines() == ["127.0.0.1 localhost", "10.77.0.1 near"]
