"""Asking other nodes."""

from __future__ import annotations

from threading import Barrier
from typing import Any

from tidegate.state.node.peers import Peers


def test_all_origins_are_asked_at_once_however_many() -> None:
    """Else some would wait for one that hangs."""
    many = 60
    together = Barrier(many)

    def connect(address: str) -> Any:
        return address

    def request(origin: Any) -> object:
        together.wait(timeout=30)
        return origin

    peers = Peers(connect)
    assert peers.ask([(f"n{number}:1", request) for number in range(many)]) == [
        f"n{number}:1" for number in range(many)
    ]
    peers.close()
