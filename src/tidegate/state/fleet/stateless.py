"""What stands in for the state nodes of a pipeline without state, so that it is rescaled like any other."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidegate.rescale.route import Route
from tidegate.state.fleet.provider import NodeHandle


class Stateless:
    """No nodes: only the route, which changes between two batches. Nothing has to move, be it from nodes or
    from a log."""

    peers: Final = False
    durable: Final = True
    handles: Final[tuple[NodeHandle, ...]] = ()

    def __init__(self, route: Route) -> None:
        self.route = route
        self.budget = 0
        self.load: NDArray[np.float64] = np.zeros(0)

    def sizes(self) -> dict[int, tuple[int, int]]:
        """Nothing has a size."""
        return {}

    def leaving(self, *, now: bool = False) -> frozenset[int]:
        """Nobody is on a machine that is going away."""
        return frozenset()

    def grow(self, count: int) -> None:
        """There are as many nodes as it takes: none."""

    def stand_in(self, indexes: frozenset[int]) -> None:
        """Nobody needs another node beside it."""

    def shrink(self, count: int) -> None:
        """As for `grow`."""

    def cancel(self, count: int) -> None:
        """As for `grow`."""

    def let_go(self) -> None:
        """Nobody holds anything."""

    def switch(self, route: Route, *, hold: bool) -> None:
        """Between two batches: the next one runs on this route."""
        self.route = route

    def restart(self, route: Route) -> None:
        """Between two queries: the next one runs on this route."""
        self.route = route
