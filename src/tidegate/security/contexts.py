"""TLS as Python's own modules speak it."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from tidegate.security.credentials import Credentials


def serving(credentials: Credentials) -> ssl.SSLContext:
    """For who accepts connections. Those who make them prove themselves by other means."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Python takes a key from a file only: one that nobody else can reach, and that is gone at once.
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        file = Path(folder) / "pem"
        file.touch(mode=0o600)
        file.write_text(credentials.key + credentials.certificate)
        context.load_cert_chain(file)
    return context


def trusting(authority: str | None) -> ssl.SSLContext:
    """For who connects to a server with a certificate of this authority, and of no other; None takes those
    that the machine trusts."""
    return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=authority)
