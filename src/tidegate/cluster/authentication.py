"""How the processes of Spark recognise each other, by the configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from tidegate.config.settings import SecuritySettings
from tidegate.errors import ConfigError
from tidegate.security.files import read_secret
from tidegate.spark.authentication import ENABLED, authenticated
from tidegate.spark.standalone import LOOPBACK

log = logging.getLogger(__name__)


def spark_settings(master: str, settings: SecuritySettings, conf: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session on this master, below `conf`, which are the user's own.

    Raises ConfigError for a master at another machine whose secret is not known.
    """
    here = _is_here(master)
    if _is_off(settings, here):
        if not here:
            _warn(master)
        return {}
    if ENABLED in conf:
        return {}
    if master.startswith("local"):
        bound = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        return {**authenticated(encrypted=False), **bound}
    encrypted = not here and settings.tls != "off"
    if not master.startswith("spark://"):
        # Spark makes a secret for each application, and distributes it.
        return authenticated(encrypted=encrypted)
    if settings.spark_secret_file is not None:
        return authenticated(read_secret(Path(settings.spark_secret_file)), encrypted=encrypted)
    if settings.spark == "auto" and here:
        return {}
    raise ConfigError(
        f"{master} has to know who talks to it: set spark.authenticate and spark.authenticate.secret on the "
        "master and its workers, and security.spark_secret_file to a file with that secret; or set "
        "security.spark to off if everybody who reaches the master may run anything on it"
    )


def check_session(master: str, settings: SecuritySettings, conf: Mapping[str, str]) -> None:
    """Raise ConfigError for a session that others have started, if it has less than `spark_settings` says."""
    if _is_here(master):
        return
    if _is_off(settings, here=False):
        _warn(master)
        return
    wanted = authenticated(encrypted=settings.tls != "off")
    missing = sorted(name for name, value in wanted.items() if value == "true" and conf.get(name) != value)
    if missing:
        raise ConfigError(
            f"the Spark session of this process talks to {master} without {' and '.join(missing)}: start it "
            "with these set to true, or set security.spark to off if everybody who reaches the cluster may "
            "see and do what the pipeline can"
        )


def _is_here(master: str) -> bool:
    return master.startswith("local") or _is_loopback(master)


def _is_off(settings: SecuritySettings, here: bool) -> bool:
    return settings.spark == "off" or (settings.spark == "auto" and settings.tls == "off" and not here)


def _warn(master: str) -> None:
    log.warning(
        "Spark does not check who talks to it: whoever reaches %s or the driver of this pipeline can do what "
        "the pipeline can",
        master,
    )


def _is_loopback(master: str) -> bool:
    host = master.removeprefix("spark://").rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")
