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
    here = master.startswith("local") or _is_loopback(master)
    if settings.spark == "off" or (settings.spark == "auto" and settings.tls == "off" and not here):
        if not here:
            log.warning(
                "Spark does not check who talks to it: whoever reaches %s or the driver of this pipeline can "
                "do what the pipeline can",
                master,
            )
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


def _is_loopback(master: str) -> bool:
    host = master.removeprefix("spark://").rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")
