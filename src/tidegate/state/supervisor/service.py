"""A supervisor on the wire: an Arrow Flight server for those who have the token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tidegate.security.security import Security
from tidegate.state.codec import encoded
from tidegate.state.supervisor.commands import COMMANDS, decode
from tidegate.state.supervisor.supervisor import Supervisor
from tidegate.state.wire.serving import FlightServer, answering


class SupervisorService(FlightServer):
    """Serves a Supervisor."""

    def __init__(self, supervisor: Supervisor, *, security: Security, bind: str) -> None:
        self._supervisor = supervisor
        super().__init__(bind, security)

    @answering
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        body = action.body.to_pybytes() if action.body is not None else b""
        answer = self._supervisor.handle(decode(action.type, body))
        return [json.dumps(encoded(answer)).encode()]

    def list_actions(self, context: Any) -> Iterator[tuple[str, str]]:
        return iter([(name, "see tidegate.state.supervisor.commands") for name in COMMANDS])
