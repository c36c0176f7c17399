"""The authority of a run, which signs a certificate for each of its parties."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from tidegate.errors import MissingExtraError
from tidegate.security.credentials import Credentials, Role

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_VALID = timedelta(days=3650)
"""Longer than any run. The authority ends with its driver, and so does all that it signed."""
_SKEW = timedelta(days=1)
"""So much may the clocks of other machines be behind."""
_SERVES: dict[Role, tuple[bool, bool]] = {
    "driver": (False, True),
    "node": (True, True),
    "task": (False, True),
    "control": (True, False),
}
"""Whether a certificate is for accepting connections, and for making them."""


class Authority:
    """Its key is in this object alone: it is never written, sent or pickled."""

    def __init__(self, name: str, *, valid: timedelta = _VALID) -> None:
        """`name` is what all certificates of the run have in common. Those already over are of use in tests
        only. Needs the extra `tls`."""
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            raise MissingExtraError("tls", "TLS between the parts of a pipeline") from None
        self.name = name
        self._valid = valid
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(self._key, "authority", hosts=None)

    @classmethod
    def of_run(cls, pipeline: str) -> Authority:
        """One with a name that no other run has."""
        plain = re.sub(r"[^a-z0-9]+", "-", pipeline.lower()).strip("-")[:40]
        return cls(f"{plain or 'pipeline'}-{secrets.token_hex(6)}.tidegate")

    @property
    def certificate(self) -> str:
        """In PEM; no secret."""
        return _pem(self._certificate)

    def issue(self, role: Role, hosts: Iterable[str] = ()) -> Credentials:
        """A new key and its certificate, also for these names and addresses of machines."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = self._signed(key, role, hosts=hosts)
        return Credentials(_pem(certificate), private.decode(), self.certificate, self.name)

    def _signed(
        self, key: EllipticCurvePrivateKey, role: Any, *, hosts: Iterable[str] | None
    ) -> x509.Certificate:
        """The certificate of a party, or that of this authority when there are no `hosts`."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        def called(what: str) -> x509.Name:
            return x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, what),
                    x509.NameAttribute(NameOID.COMMON_NAME, self.name[:64]),
                ]
            )

        own = hosts is None
        subject = called(role)
        issuer = subject if own else self._certificate.subject
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(issuer, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + self._valid) - _SKEW)
            .not_valid_after(now + self._valid)
            .add_extension(x509.BasicConstraints(ca=own, path_length=0 if own else None), critical=True)
            .add_extension(_usage(signs=own), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if hosts is not None:
            serves, asks = _SERVES[role]
            usages = [ExtendedKeyUsageOID.SERVER_AUTH] * serves + [ExtendedKeyUsageOID.CLIENT_AUTH] * asks
            names = [x509.DNSName(self.name), *map(_general, hosts)]
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def __reduce__(self) -> NoReturn:
        raise TypeError("the key of an authority stays in its process")


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
