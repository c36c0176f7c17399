from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.kit import await_that, python, received, receiver, send
from tidegate.errors import LabError
from tidegate.lab import Host, Lab, Link, cgroup
from tidegate.lab.addresses import addresses, hosts_file
from tidegate.lab.host import Surroundings
from tidegate.lab.netem import Netem, queue
from tidegate.lab.network import has_netem
from tidegate.lab.spec import HostSpec

NAMES = ["a", "b", "c"]


def command(link: Link) -> str:
    return " ".join(queue("10.77.0.12", link)).removeprefix("qdisc replace dev to12 root ")


def test_each_property_of_a_link_is_one_of_its_queue() -> None:
    assert command(Link(delay=0.0125)) == "netem limit 1000000 delay 12500us"
    assert command(Link(jitter=0.002)) == "netem limit 1000000 delay 0us 2000us"
    assert command(Link(loss=0.001)) == "netem limit 1000000 delay 0us loss 0.1%"
    assert command(Link(rate=10**7)) == "netem limit 1000000 delay 0us rate 10000000bit"
    assert command(Link(loss=0.1, cut=True)) == "netem limit 1000000 delay 0us loss 100%"
    assert command(Link()) == "noqueue"


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Host]]:
    """Connected as with netem, which they need only for links that are not as fast as can be."""
    given = addresses(NAMES)
    around = Surroundings("netem-test", Netem(), cgroup.of_machine(), hosts_file(given), ())
    made = {name: Host(name, given[name], HostSpec(), around) for name in NAMES}
    try:
        for host in made.values():
            host.boot()
        yield made
    finally:
        for host in made.values():
            host.kill()


@pytest.mark.lab
def test_every_host_reaches_every_other(hosts: dict[str, Host]) -> None:
    receivers = [receiver(host) for host in hosts.values()]
    for source in NAMES:
        for target in NAMES:
            send(hosts[source], target, source)
    await_that(lambda: all(sorted(received(host)) == NAMES for host in hosts.values()), "all has arrived")
    for process in receivers:
        process.kill()
        process.communicate()


@pytest.mark.lab
def test_a_host_comes_back_under_its_address(hosts: dict[str, Host]) -> None:
    hosts["a"].kill()
    hosts["a"].boot()
    with receiver(hosts["a"]) as process:
        send(hosts["c"], "a", "from c")
        await_that(lambda: received(hosts["a"]) == ["from c"], "it has arrived")
        process.kill()
    assert python(hosts["b"], "import socket; print(len(socket.if_nameindex()))") == "3"


@pytest.mark.lab
@pytest.mark.skipif(has_netem(), reason="for kernels without netem")
def test_without_netem_a_lab_that_asks_for_it_says_so() -> None:
    lab = Lab({"lab": {"links": "netem"}, "hosts": {"a": {}}})
    with pytest.raises(LabError, match=r'this kernel has no netem .* set links = "switch"'), lab:
        pass


@pytest.mark.lab
@pytest.mark.skipif(not has_netem(), reason="the kernel has no netem")
def test_netem_keeps_to_the_links() -> None:
    declared = {"lab": {"links": "netem"}, "hosts": {"a": {"delay": "10 ms"}, "b": {"delay": "10 ms"}}}
    with Lab(declared) as lab:
        assert any(lab.check().good for _ in range(5))
        with lab.partition("a", one_way="in"):
            assert lab.check().measured["a", "b"] is None
        assert any(lab.check().good for _ in range(5))
