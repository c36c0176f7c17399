"""Which host has which address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address

NETWORK = 24
"""The length of the prefix. The network of a lab is closed, so all labs have the same addresses."""
_FIRST = IPv4Address("10.77.0.1")
MOST_HOSTS = 250


def addresses(names: Sequence[str]) -> dict[str, str]:
    """An address for each, in order.

    >>> addresses(["near", "far"])
    {'near': '10.77.0.1', 'far': '10.77.0.2'}
    """
    return {name: str(_FIRST + index) for index, name in enumerate(names)}


def hosts_file(addresses: Mapping[str, str]) -> str:
    """The /etc/hosts of every host."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    return "\n".join([*lines, ""])
