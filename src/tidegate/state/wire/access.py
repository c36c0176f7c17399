"""How a node is reached: a Unix socket that only one user may open, or an address that only the parties of
one run can talk to.

Flight reads a whole message before any code sees its token. So strangers are kept out earlier: by the
permissions of the socket's folder, or by the TLS handshake, in which both sides have to show a certificate
of their run's authority.
"""

from __future__ import annotations

from pyarrow import flight

from tidegate.security.credentials import Credentials
from tidegate.security.security import Security

SOCKET = "unix:"
"""What the address of a node at a Unix socket begins with; its path follows."""
OPTIONS = "TIDEGATE_OPTIONS"
"""A variable in the environment of a node, see `tidegate.state.node.process`."""


def credentials(address: str, security: Security) -> Credentials | None:
    """What TLS takes at an address; None where there is none."""
    return None if address.startswith(SOCKET) else security.tls


def at(host: str, port: int) -> str:
    """Where a server listens; a socket is as good as an address.

    >>> at("::1", 80), at("a", 80), at("unix:/run/a.sock", 0)
    ('[::1]:80', 'a:80', 'unix:/run/a.sock')
    """
    if host.startswith(SOCKET):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def location(address: str, security: Security) -> flight.Location:
    """An address as Flight has it.

    >>> location("unix:/run/a.sock", Security("token"))
    <pyarrow.flight.Location b'grpc+unix:///run/a.sock'>
    """
    if address.startswith(SOCKET):
        return flight.Location.for_grpc_unix(address.removeprefix(SOCKET))
    return flight.Location(f"{'grpc+tls' if security.tls else 'grpc'}://{address}")


_UNACKNOWLEDGED = 2_000
"""Milliseconds that a kernel has to acknowledge what was sent, or that somebody wants to connect: one that
does not is on a machine that is dead or cut off. A busy process may take as long as it likes."""
_OPTIONS = [
    ("grpc.keepalive_timeout_ms", _UNACKNOWLEDGED),
    # Goes with it. More often, and a server takes it for an attack.
    ("grpc.keepalive_time_ms", 600_000),
    ("grpc.min_reconnect_backoff_ms", _UNACKNOWLEDGED),
]


def client(address: str, security: Security) -> flight.FlightClient:
    """A connection to the node at an address, opened when it is first used."""
    tls = credentials(address, security)
    if tls is None:
        return flight.FlightClient(location(address, security), generic_options=_OPTIONS)
    return flight.FlightClient(
        location(address, security),
        generic_options=_OPTIONS,
        tls_root_certs=tls.authority,
        cert_chain=tls.certificate,
        private_key=tls.key,
        override_hostname=tls.name,
    )
