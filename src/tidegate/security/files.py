"""Secrets and certificates that are given as files."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import MissingExtraError, SecurityError
from tidegate.security.credentials import Credentials

if TYPE_CHECKING:
    from cryptography import x509

SOON = timedelta(days=30)
"""A certificate that ends within this time is worth a warning."""
_LONGEST = 4096
"""Bytes of a token or a shared secret."""


def read_secret(path: Path) -> str:
    """A token or a shared secret: the text of a file that only its user, or a group, may read."""
    with _opened(path, "secret") as text:
        found = text.strip()
    if not found or len(found) > _LONGEST or not found.isascii() or not found.isprintable():
        raise SecurityError(f"{path} must hold one line with a secret, such as `openssl rand -hex 32` writes")
    return found


def read_credentials(certificate: Path, key: Path, authority: Path) -> Credentials:
    """What these files give, in PEM, once it is known to fit together. Needs the extra `tls`.

    The first file may go on with the certificates between that of the party and the authority.
    """
    with _opened(certificate) as text:
        shown = text
    with _opened(key, "key") as text:
        private = text
    with _opened(authority) as text:
        roots = text
    chain, trusted = _certificates(certificate, shown), _certificates(authority, roots)
    own = chain[0]
    _check_key(key, private, certificate, own)
    for issued, issuer in pairwise(chain):
        if not _signed(issued, issuer):
            raise SecurityError(f"{certificate}: each certificate in it must be signed by the next one")
    if not any(_signed(chain[-1], root) for root in trusted):
        raise SecurityError(f"{certificate} is not signed by the authority in {authority}")
    now = datetime.now(UTC)
    for path, each in [(certificate, each) for each in chain] + [(authority, each) for each in trusted]:
        if not each.not_valid_before_utc <= now <= each.not_valid_after_utc:
            span = f"{each.not_valid_before_utc:%Y-%m-%d} to {each.not_valid_after_utc:%Y-%m-%d}"
            raise SecurityError(f"{path} is valid from {span} only: replace it, then start again")
    return Credentials(shown, private, roots, _name(certificate, own))


def read_authority(path: Path) -> str:
    """The certificate of an authority, in PEM."""
    with _opened(path) as text:
        if "-----BEGIN CERTIFICATE-----" not in text:
            raise SecurityError(f"{path} holds no certificate in PEM")
        return text


def ends(credentials: Credentials) -> datetime:
    """When the certificate of a party is over."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(credentials.certificate.encode()).not_valid_after_utc


@contextmanager
def _opened(path: Path, what: str = "") -> Iterator[str]:
    """The text of a file; of one with a secret only if nobody else may read it."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            if what and mode & stat.S_IROTH:
                raise SecurityError(f"everybody may read the {what} in {path}: chmod 600 {path}")
            yield file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise SecurityError(f"cannot read {path}: {why}") from error


def _certificates(path: Path, text: str) -> list[x509.Certificate]:
    try:
        from cryptography import x509
    except ImportError:
        raise MissingExtraError("tls", "TLS between the parts of a pipeline") from None
    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError as error:
        raise SecurityError(f"{path} holds no certificate in PEM") from error


def _check_key(path: Path, text: str, beside: Path, certificate: x509.Certificate) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError) as error:
        raise SecurityError(f"{path} holds no private key in PEM, or one with a passphrase") from error
    if key.public_key() != certificate.public_key():
        raise SecurityError(f"the key in {path} does not belong to the certificate in {beside}")


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(by)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _name(path: Path, certificate: x509.Certificate) -> str:
    from cryptography import x509

    kind: Any = x509.SubjectAlternativeName
    try:
        names = certificate.extensions.get_extension_for_class(kind).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = []
    if not names:
        raise SecurityError(f"{path} needs a DNS name, that of the pipeline, as subject alternative name")
    return str(names[0])
