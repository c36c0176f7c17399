"""Certificates as a user has them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from tidegate.security.authority import Authority

Given: TypeAlias = tuple[Path, Path, Path]
"""Certificate, key, authority."""


def write(folder: Path, authority: Authority) -> Given:
    """Files that this authority has signed, for a party that is all at once."""
    issued = authority.issue("node")
    files = folder / "certificate.pem", folder / "key.pem", folder / "authority.pem"
    for file, text in zip(files, (issued.certificate, issued.key, issued.authority), strict=True):
        file.touch(mode=0o600)
        file.write_text(text)
    return files
