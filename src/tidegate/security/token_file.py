"""A file that a driver and the supervisors of state nodes share, and by which they know each other."""

from __future__ import annotations

import os
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.security.security import Security


def create(path: Path) -> None:
    """Write a new one, for this user's eyes only. Needs the extra `tls`. ConfigError when there is one."""
    made = Security.of_run("nodes", tls=True)
    assert made.authority is not None
    shared = Security(made.token, made.authority.issue("node"))
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(shared.as_text() + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write the token file {path}: {error.strerror}") from error


def read(path: Path) -> Security:
    """What both sides show. ConfigError when it cannot be read, or others can."""
    try:
        readable, text = path.stat().st_mode & 0o007, path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}") from error
    if readable:
        raise ConfigError(f"the token file {path} can be read by every user; run: chmod o= {path}")
    try:
        return Security.from_text(text)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no token file; make one by tidegate node --new-token-file FILE"
        ) from error
