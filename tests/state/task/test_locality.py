"""Whether a node is on the host of a task."""

from __future__ import annotations

import pytest

from tidegate.state.task.locality import is_here


@pytest.mark.parametrize(
    "address", ["unix:/run/a.sock", "127.0.0.1:7000", "127.9.9.9:7000", "localhost:7000"]
)
def test_what_only_this_host_can_reach_is_here(address: str) -> None:
    assert is_here(address)


@pytest.mark.parametrize("address", ["192.0.2.7:7000", "no such host:7000", "[2001:db8::1]:7000"])
def test_what_has_an_address_of_another_host_is_not(address: str) -> None:
    assert not is_here(address)
