"""How a node is reached: a Unix socket that only one user may open, or an address that only the parties of
one run can talk to.

Flight reads a whole message before any code sees its token. So strangers are kept out earlier: by the
permissions of the socket's folder, or by the TLS handshake, in which both sides have to show the certificate
of their run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyarrow import flight

from tidegate.errors import MissingExtraError

SOCKET = "unix:"
"""What the address of a node at a Unix socket begins with; its path follows."""
TOKEN, IDENTITY, OPTIONS = "TIDEGATE_TOKEN", "TIDEGATE_IDENTITY", "TIDEGATE_OPTIONS"
"""Variables in the environment of a node, see `tidegate.state.node.process`."""
_HOST = "tidegate"
"""The name in every certificate: which node it is does not matter, only which run."""
_VALID = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Identity:
    """A self-signed certificate and its key, both in PEM. All parties of a run have the same."""

    certificate: bytes
    key: bytes

    @classmethod
    def create(cls) -> Identity:
        """A new one. Needs the extra `tls`."""
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            raise MissingExtraError("tls", "state.bind, which has nodes listen on the network,") from None
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOST)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            # The clocks of other machines may be behind.
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + _VALID)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(_HOST)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        plain = serialization.NoEncryption()
        return cls(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain),
        )


def location(address: str, identity: Identity | None) -> flight.Location:
    """An address as Flight has it.

    >>> location("unix:/run/a.sock", None)
    <pyarrow.flight.Location b'grpc+unix:///run/a.sock'>
    """
    if address.startswith(SOCKET):
        return flight.Location.for_grpc_unix(address.removeprefix(SOCKET))
    return flight.Location(f"{'grpc+tls' if identity else 'grpc'}://{address}")


def client(address: str, identity: Identity | None) -> flight.FlightClient:
    """A connection to the node at an address, opened when it is first used."""
    if identity is None or address.startswith(SOCKET):
        return flight.FlightClient(location(address, identity))
    return flight.FlightClient(
        location(address, identity),
        tls_root_certs=identity.certificate,
        cert_chain=identity.certificate,
        private_key=identity.key,
        override_hostname=_HOST,
    )
