"""What must not be shown, nor be passed where others can read it."""

from __future__ import annotations

import re

_SECRET = re.compile(r"secret|password|token|access[.]key|passphrase|credential", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=://)([^/?#@]*?):[^/?#]*(?=@)|([?&]password)=[^&#]*")
"""In a URL."""
_SPARK = "spark.conf."


def is_secret(setting: str) -> bool:
    """Whether one of Spark's own settings is secret, by its name.

    >>> is_secret("spark.hadoop.fs.s3a.secret.key"), is_secret("spark.sql.shuffle.partitions")
    (True, False)
    """
    return _SECRET.search(setting) is not None


def shown(key: str, value: object) -> object:
    """The value, with stars for what is secret: one of Spark's own settings by its key, a password in a URL.

    >>> shown("spark.conf.spark.hadoop.fs.s3a.secret.key", "hunter2"), shown("engine.tries", 3)
    ('***', 3)
    >>> shown("state.redis", "redis://me:hunter2@example.org:6379/0")
    'redis://me:***@example.org:6379/0'
    """
    if key.startswith(_SPARK) and is_secret(key.removeprefix(_SPARK)):
        return "***"
    return _PASSWORD.sub(_starred, value) if isinstance(value, str) else value


def _starred(found: re.Match[str]) -> str:
    return f"{found[2]}=***" if found[2] else f"{found[1]}:***"
