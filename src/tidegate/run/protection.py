"""Which security a run has: as configured, and by itself where anything listens on an address."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tidegate.config import Config
from tidegate.errors import ConfigError
from tidegate.security import files
from tidegate.security.credentials import Credentials
from tidegate.security.security import Security

log = logging.getLogger(__name__)


def secured(config: Config, pipeline: str) -> Security:
    """The driver's. Raises ConfigError for settings that contradict each other, SecurityError for files that
    cannot be used."""
    settings = config.security
    given = _given(config)
    if settings.tls == "off":
        if reachable := [what for what, loopback in _listening(config).items() if not loopback]:
            log.warning(
                "security.tls is off: whoever can read the network of %s can do what this pipeline can",
                " and ".join(reachable),
            )
        return Security.of_run(pipeline, tls=False, plain=True)
    if given is None:
        return Security.of_run(pipeline, tls=wants_tls(config))
    left = files.ends(given) - datetime.now(UTC)
    if left < files.SOON:
        log.warning(
            "%s ends in %d days; from then on no part of the pipeline can connect to another: replace it, "
            "and start the pipeline again before that",
            settings.certificate,
            left.days,
        )
    return replace(Security.of_run(pipeline, tls=False), tls=given)


def of_control(config: Config, security: Security) -> Security:
    """The same, with the token that the control API has been given, if it has."""
    if config.control.token_file is None:
        return security
    return replace(security, token=files.read_secret(Path(config.control.token_file)))


def wants_tls(config: Config) -> bool:
    """Whether there is to be TLS: state nodes at an address always have it, since they would read whatever a
    stranger sends."""
    if config.security.tls != "auto":
        return config.security.tls == "on"
    listening = _listening(config)
    return config.security.certificate is not None or _NODES in listening or not all(listening.values())


_NODES = "its state nodes"


def _listening(config: Config) -> dict[str, bool]:
    """What listens at an address, and whether that is one of loopback."""
    found = {}
    if config.state.provider != "local":
        found[_NODES] = False
    elif config.state.bind is not None:
        found[_NODES] = is_loopback(config.state.bind)
    if config.control.enabled:
        found["its control API"] = is_loopback(config.control.bind)
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.2"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("host-1")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _given(config: Config) -> Credentials | None:
    settings = config.security
    named = {
        f"security.{name}": getattr(settings, name)
        for name in ("certificate", "key", "authority")
        if getattr(settings, name) is not None
    }
    if not named:
        return None
    if settings.tls == "off":
        raise ConfigError(f"security.tls is off, so {', '.join(named)} must not be set")
    if settings.certificate is None or settings.key is None or settings.authority is None:
        raise ConfigError(
            f"{' and '.join(named)} alone is not enough: set security.certificate, security.key and "
            "security.authority, or none of them"
        )
    return files.read_credentials(Path(settings.certificate), Path(settings.key), Path(settings.authority))
