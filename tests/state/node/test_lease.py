"""How long a node goes on without its driver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import FencedError, StateError
from tidegate.state.node.lease import Lease


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    lease = Lease.starting(30, 100)
    assert lease.left(110) == 20
    assert not lease.has_run_out(129)
    assert lease.has_run_out(130)
    renewed = lease.renewed(1, 129)
    assert not renewed.has_run_out(158)
    assert renewed.has_run_out(159)


def test_a_lease_that_has_run_out_is_not_renewed() -> None:
    with pytest.raises(StateError, match="given up: no driver has asked for it for 30 s"):
        Lease.starting(30, 100).renewed(1, 130)


def test_an_older_driver_does_not_keep_the_node_of_a_newer_one() -> None:
    lease = Lease.starting(30, 100).renewed(2, 110)
    with pytest.raises(FencedError, match="generation 2 has taken over"):
        lease.renewed(1, 120)
    assert lease.renewed(3, 120).generation == 3


@given(st.lists(st.floats(0, 40), max_size=20))
def test_a_node_lives_as_long_as_no_pause_is_as_long_as_the_lease(pauses: list[float]) -> None:
    lease, now, alive = Lease.starting(30, 0), 0.0, True
    for pause in pauses:
        now += pause
        alive = alive and lease.left(now) > 0  # type: ignore[operator]
        try:
            lease = lease.renewed(1, now)
        except StateError:
            assert not alive
        else:
            assert alive


def test_a_node_without_a_lease_never_gives_up() -> None:
    lease = Lease.starting(None, 0)
    assert lease.left(1e9) is None
    assert not lease.renewed(1, 1e9).has_run_out(1e10)
