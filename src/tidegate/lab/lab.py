"""Several machines on this one."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any, Literal, Self

from tidegate.errors import LabError
from tidegate.lab import cgroup, rtt, schedule, spec
from tidegate.lab.addresses import addresses, hosts_file
from tidegate.lab.chaos import Chaos, Deed
from tidegate.lab.disruption import Disruption
from tidegate.lab.host import Host, Surroundings
from tidegate.lab.link import Link
from tidegate.lab.network import Network, network
from tidegate.lab.spark import SparkCluster
from tidegate.lab.store import Store

log = logging.getLogger(__name__)


class Lab:
    """Hosts and the links between them, from `with` to its end.

        with Lab({"hosts": {"near": {}, "far": {"delay": "12.5 ms"}}}) as lab:
            lab["far"].run(["python3", "-c", "print('hello')"])
            with lab.partition("near", "far", one_way="in"):
                ...

    It is declared by a TOML file or by the same tables in Python. Needs root. Nothing is left of it when its
    process ends, however that happens.
    """

    def __init__(self, declared: Mapping[str, Any] | str | Path) -> None:
        if isinstance(declared, Mapping):
            self.spec, origin = spec.parse(declared), "chaos"
        else:
            self.spec, origin = spec.parse(spec.read(declared), str(declared)), str(declared)
        self._events = schedule.parse(
            self.spec.chaos, self.spec.hosts, origin, store=self.spec.store is not None
        )
        self.name = secrets.token_hex(3)
        self._links = self.spec.between()
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._delays: dict[str, list[dict[str, float]]] = {}
        self._change = RLock()
        self._network: Network | None = None
        self._services = ExitStack()
        self._spark: SparkCluster | None = None
        self._store: Store | None = None
        self.hosts: dict[str, Host] = {}
        """By name, in the order in which they were declared."""

    def __enter__(self) -> Self:
        require_root()
        self._network = network(self.spec.lab.links, self.spec.lab.seed)
        try:
            self._make_hosts(self._network)
            for (source, target), link in self._links.items():
                self._shape(source, target, link)
            self.boot()
            self._start_services()
        except BaseException:
            self.__exit__()
            raise
        if not self._network.realtime:
            log.warning(
                "packets may arrive late when the machine is busy: this process may not have real-time "
                "priority (CAP_SYS_NICE)"
            )
        return self

    def _make_hosts(self, connected: Network) -> None:
        given = addresses(list(self.spec.hosts))
        shared = [str(Path(folder).resolve()) for folder in self.spec.lab.shared]
        around = Surroundings(self.name, connected, cgroup.of_machine(), hosts_file(given), shared)
        self.hosts = {name: Host(name, given[name], host, around) for name, host in self.spec.hosts.items()}

    def _start_services(self) -> None:
        if self.spec.store is not None:
            self._store = self._services.enter_context(Store(self[self.spec.store.host]))
        spark = self.spec.spark
        if spark is not None:
            cluster = SparkCluster(
                self,
                spark.master,
                spark.workers or (),
                cores=spark.cores,
                memory=spark.memory,
                environment=self._store.environment if self._store else {},
            )
            self._spark = self._services.enter_context(cluster)

    def __exit__(self, *failure: object) -> None:
        if self._network is None:
            return
        try:
            self._services.close()
            with ThreadPoolExecutor() as pool:
                list(pool.map(Host.kill, self.hosts.values()))
        finally:
            self._network.close()
            self.hosts = {}

    def __getitem__(self, name: str) -> Host:
        if not self.hosts:
            raise LabError("the lab is not up: its hosts are there from `with` to its end")
        if name not in self.hosts:
            raise LabError(f"there is no host {name!r}{spec.nearest(name, self.hosts)}")
        return self.hosts[name]

    @property
    def spark(self) -> SparkCluster:
        """The cluster that the lab declares in `[spark]`."""
        if self._spark is None:
            raise LabError('the lab has no Spark: declare it, like [spark] with master = "near"')
        return self._spark

    @property
    def store(self) -> Store:
        """The object store that the lab declares in `[store]`."""
        if self._store is None:
            raise LabError('the lab has no store: declare it, like [store] with host = "near"')
        return self._store

    def boot(self, *names: str) -> None:
        """Start hosts, at once; without names, all that are declared to be up."""
        chosen = names or [name for name, host in self.spec.hosts.items() if host.up]
        with ThreadPoolExecutor() as pool:
            list(pool.map(Host.boot, [self[name] for name in chosen]))

    # Links

    @property
    def links(self) -> Mapping[tuple[str, str], Link]:
        """(source, target) -> the link as it is now."""
        with self._change:
            return {pair: replace(link, cut=self._cuts[pair] > 0) for pair, link in self._links.items()}

    def shape(
        self,
        source: str,
        target: str,
        *,
        delay: str | None = None,
        jitter: str | None = None,
        loss: float | None = None,
        rate: str | None = None,
    ) -> None:
        """Change what is given of one link, in force on return."""
        change = spec.changed(spec.LinkSpec(), delay=delay, jitter=jitter, loss=loss, rate=rate)
        self._require_link(source, target)
        with self._change:
            link = self._links[source, target] = change.over(self._links[source, target])
            self._shape(source, target, link)

    def delay(self, host: str, delay: str) -> Callable[[], None]:
        """Let all that comes to a host take so long. Two hosts with a delay are twice that apart. What is
        returned sets back what was before. Delays may overlap: the latest that is not set back holds."""
        with self._change:
            before = {pair[0]: link.delay for pair, link in self.links.items() if pair[1] == self[host].name}
            for source in before:
                self.shape(source, host, delay=delay)
            layers = self._delays.setdefault(host, [])
            layers.append(before)

        def back() -> None:
            with self._change:
                place = next((place for place, layer in enumerate(layers) if layer is before), None)
                if place is None:
                    return
                del layers[place]
                if layers[place:]:
                    layers[place].update(before)
                    return
                for source, was in before.items():
                    self.shape(source, host, delay=f"{was:.9f} s")

        return back

    def partition(
        self,
        one: str | Sequence[str],
        other: str | Sequence[str] | None = None,
        *,
        one_way: Literal["in", "out"] | None = None,
    ) -> Disruption:
        """Cut hosts off from others, or from all others; until `heal`, or to the end of a `with`.

        One way: only what comes in is lost, or only what they send out."""
        if one_way not in (None, "in", "out"):
            raise LabError(f"a partition is one way 'in' or 'out', not {one_way!r}")
        ones = [self[name].name for name in ([one] if isinstance(one, str) else one)]
        rest = [name for name in self.hosts if name not in ones] if other is None else other
        others = [rest] if isinstance(rest, str) else list(rest)
        pairs = [(a, b) for a in ones for b in others]
        for pair in pairs:
            self._require_link(*pair)
        inward = [(b, a) for a, b in pairs] if one_way != "out" else []
        outward = pairs if one_way != "in" else []
        cut = [*inward, *outward]
        self._count(cut, 1)
        return Disruption(lambda: self._count(cut, -1))

    def _count(self, pairs: Iterable[tuple[str, str]], more: int) -> None:
        """Cuts may overlap: a link works again when the last of them is healed."""
        with self._change:
            for pair in pairs:
                self._cuts[pair] += more
                self._shape(*pair, self._links[pair])

    def _shape(self, source: str, target: str, link: Link) -> None:
        assert self._network is not None, "a lab has links from `with` to its end"
        ends = self[source].address, self[target].address
        self._network.shape(*ends, replace(link, cut=self._cuts[source, target] > 0))

    def _require_link(self, source: str, target: str) -> None:
        if self[source] is self[target]:
            raise LabError(f"there is no link from {source} to itself: name two hosts")

    # What else one does with it

    def check(self) -> rtt.RoundTrips:
        """Measure all round trips while the machine is busy, and warn if they are not what the links say."""
        found = rtt.measure(self)
        if not found.good:
            log.warning(
                "round trips are up to %.1f ms off under load: other real-time programs may be running here",
                found.error * 1000,
            )
        return found

    def chaos(
        self,
        declared: Sequence[Mapping[str, Any]] | str | Path | None = None,
        *,
        seed: int | None = None,
        tell: Callable[[Deed], object] | None = None,
    ) -> Chaos:
        """A schedule of what goes wrong: a TOML file with [[chaos]] tables, the same tables in Python, or the
        lab's own if it is left out. It begins with `with`."""
        events, store = self._events, self.spec.store is not None
        if isinstance(declared, str | Path):
            events = schedule.read(declared, self.spec.hosts, store=store)
        elif declared is not None:
            events = schedule.parse(declared, self.spec.hosts, store=store)
        return Chaos(self, events, self.spec.lab.seed if seed is None else seed, tell)


def require_root() -> None:
    """Raise where a lab cannot be."""
    if not sys.platform.startswith("linux"):
        raise LabError("the lab needs Linux: its hosts are namespaces of the kernel")
    if os.geteuid():
        raise LabError(
            "the lab needs root, for namespaces and network devices: start it with sudo, or in a container "
            "started with --privileged"
        )
