"""A supervisor as a driver sees it."""

from __future__ import annotations

import json
from concurrent.futures import wait
from typing import TypeVar

from pyarrow import flight

from tidegate.errors import HostError, NodeError, TidegateError
from tidegate.security.security import Security
from tidegate.state.codec import decoded
from tidegate.state.node.spec import NodeSpec
from tidegate.state.supervisor.commands import Command, End, Listening, Look, Report, Start, Stop, encode
from tidegate.state.wire import access
from tidegate.state.wire.beside import beside
from tidegate.state.wire.flights import from_flight

_ANSWER = 2.0
"""Seconds that a supervisor has to say what there is. A round of renewals waits for the slowest one: with the
pause before it, that has to be less than the shortest lease, 4 seconds, of the others."""
_START = 200.0
"""Seconds that it has to start a node, with another try or two."""
_END = 3.0
"""Seconds that it has to kill a node and remove its files."""
_PAUSE = 3.0
"""Seconds between two looks at one that starts a node."""
_SILENT = 2
"""So many looks in a row without an answer, and it is taken for gone."""

T = TypeVar("T")


class SupervisorClient:
    """A connection to the supervisor on a host. Raises what that raised, and HostError when it does not
    answer in time or cannot be reached."""

    def __init__(self, address: str, host: str, *, security: Security) -> None:
        self.address = address
        self.host = host
        self._headers = [(b"authorization", f"Bearer {security.token}".encode())]
        self._connection = access.client(address, security)

    def start(self, name: str, spec: NodeSpec, *, gently: bool = False) -> Listening:
        """Have a node that listens. One that starts although nobody waits for it any more ends with its
        lease."""
        command = Start(name, spec, gently)
        started = beside(lambda: self._send(command, Listening, _START), name=f"starting-{name}")
        silent = 0
        while silent < _SILENT and not wait([started], _PAUSE).done:
            silent = 0 if self._answers() else silent + 1
        if not started.done():
            raise self._no_answer()
        return started.result()

    def end(self, name: str, seconds: float) -> None:
        """See a node gone; it has so long to end by itself."""
        self._send(End(name, round(seconds * 1000)), Report, seconds + _END)

    def look(self) -> Report:
        """What there is."""
        return self._send(Look(), Report, _ANSWER)

    def stop(self) -> None:
        """End a supervisor that belongs to this driver."""
        self._send(Stop(), Report, _ANSWER)

    def close(self) -> None:
        self._connection.close()

    def _answers(self) -> bool:
        try:
            self.look()
        except TidegateError:
            return False
        return True

    def _no_answer(self) -> HostError:
        return HostError(
            f"the supervisor of state nodes on {self.host}, at {self.address}, does not answer",
            host=self.host,
        )

    def _send(self, command: Command, answer: type[T], timeout: float) -> T:
        options = flight.FlightCallOptions(timeout=timeout, headers=self._headers)
        try:
            (found,) = self._connection.do_action(flight.Action(*encode(command)), options)
        except (flight.FlightError, OSError) as error:
            meant = from_flight(error, self.address)
            if isinstance(meant, NodeError):
                raise self._no_answer() from error
            raise meant from error
        return decoded(answer, json.loads(found.body.to_pybytes()))
