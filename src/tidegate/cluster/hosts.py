"""What Spark calls the hosts of state nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence


def addresses_of(host: str) -> frozenset[str]:
    """The addresses of a host by its name or address; none if it has no such name."""
    try:
        return frozenset(str(place[0]) for *_, place in socket.getaddrinfo(host, None))
    except OSError:
        return frozenset()


class HostNames:
    """Spark prefers a host only by the very text that its executor there goes by: a name or an address."""

    def __init__(
        self,
        known: Callable[[], frozenset[str]],
        addresses: Callable[[str], frozenset[str]] = addresses_of,
    ) -> None:
        """`known` gives the hosts of the executors as Spark has them; `addresses` those of a host."""
        self._known, self._addresses = known, addresses
        self._found: dict[str, str] = {}
        self._missed: dict[str, frozenset[str]] = {}
        """Host -> the executors' hosts among which it was not."""

    def of(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """The same hosts by Spark's names, an empty one for a host without an executor; nothing if none has
        any. An executor may come, so the next call looks again."""
        unknown = {host for host in hosts if host not in self._found}
        if unknown:
            known = self._known()
            for host in unknown:
                if self._missed.get(host) == known:
                    continue
                if (found := self._match(host, known)) is not None:
                    self._found[host] = found
                else:
                    self._missed[host] = known
        names = tuple(self._found.get(host, "") for host in hosts)
        return names if any(names) else ()

    def _match(self, host: str, known: frozenset[str]) -> str | None:
        if host in known:
            return host
        mine = self._addresses(host)
        return next((name for name in sorted(known) if mine & self._addresses(name)), None)
