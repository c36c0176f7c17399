"""What every Flight server of a run has in common: how it is told of, whom it admits, how it answers."""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from tidegate.errors import StateError, TidegateError
from tidegate.security.security import VARIABLE, Security
from tidegate.state.wire.access import SOCKET, credentials, location
from tidegate.state.wire.flights import to_flight

_log = logging.getLogger(__name__)

T = TypeVar("T")


def answering(method: Callable[..., T]) -> Callable[..., T]:
    """Send errors as the client knows them; the story of an unexpected one goes to the node's log."""

    @functools.wraps(method)
    def answer(server: FlightServer, context: Any, *args: Any) -> T:
        server.check(context)
        try:
            return method(server, context, *args)
        except TidegateError as error:
            raise to_flight(error) from error
        except pa.ArrowException as error:
            raise to_flight(StateError(f"a request cannot be read and is refused: {error}")) from error
        except Exception as error:
            _log.exception("a request failed")
            problem = f"{type(error).__name__}: {error}"
            raise to_flight(StateError(f"the node failed: {problem}")) from error

    return answer


class Guard(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Rejects calls without the token, of any kind, before anything else happens."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> None:
        given = [
            value for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        value = given[0] if len(given) == 1 else ""
        raw = value if isinstance(value, bytes) else value.encode()
        if not hmac.compare_digest(raw, self._wanted):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """One that only the parties of a run reach. Listens from its creation until `shutdown`; `port` tells
    where."""

    def __init__(self, bind: str, security: Security) -> None:
        """`bind` is unix:PATH, or host:port, where port 0 is any that is free."""
        if not security.token:
            raise StateError(f"a server of state needs a token: set {VARIABLE}")
        self._tls = tls = credentials(bind, security)
        if tls is None and not bind.startswith(SOCKET) and not security.plain:
            raise StateError(f"a server of state at {bind} needs a certificate: set {VARIABLE}")
        super().__init__(
            location(bind, security),
            tls_certificates=[(tls.certificate, tls.key)] if tls else None,
            verify_client=tls is not None,
            root_certificates=tls.authority if tls else None,
            middleware={"guard": Guard(security.token)},
        )

    def check(self, context: Any) -> None:
        """Raise unless the certificate of a caller has the name of the run: an authority that was given may
        have signed others. Flight tells the name only once a call has begun."""
        if self._tls is not None and context.peer_identity() != self._tls.name.encode():
            raise flight.FlightUnauthenticatedError("the certificate is not one of this pipeline")


def announce(line: dict[str, object]) -> None:
    """Tell whoever started this process where it listens. Nothing else goes to standard output: nobody reads
    it from here on."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def told_security() -> Security:
    """What this process was told in its environment, where nothing of it stays."""
    told = os.environ.pop(VARIABLE, None)
    return Security.from_text(told) if told else Security("")
