"""Spark's own authentication and encryption, and where its secret may stand."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from pathlib import Path

from tidegate.security.secrecy import is_secret

ENABLED = "spark.authenticate"
_FILTER = "org.apache.spark.ui.JWSFilter"


def authenticated(secret: str | None = None, *, encrypted: bool) -> dict[str, str]:
    """Settings for the processes of one application. Without a secret Spark makes one, where it can."""
    settings = {ENABLED: "true"}
    if secret is not None:
        settings["spark.authenticate.secret"] = secret
    if encrypted:
        settings |= {
            "spark.network.crypto.enabled": "true",
            # What else it would accept is not encrypted.
            "spark.network.crypto.saslFallback": "false",
        }
    return settings


def write_properties(file: Path, secret: str) -> None:
    """What the processes of a standalone cluster read at their start, for no eyes but theirs. Their web pages
    show logs and cannot be turned off; with this nobody gets to see them."""
    settings = {
        **authenticated(secret, encrypted=False),
        "spark.ui.filters": _FILTER,
        f"spark.{_FILTER}.param.secretKey": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    }
    file.touch(mode=0o600)
    file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))


def public(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that may be among the arguments of a process, which other users of the machine can read."""
    return {name: value for name, value in settings.items() if not is_secret(name)}
