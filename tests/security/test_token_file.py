"""What a driver and the supervisors of state nodes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.security import token_file


def test_what_was_created_is_read_by_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token_file.create(file)
    found = token_file.read(file)
    assert found.token
    assert found.tls is not None
    assert found == token_file.read(file)
    assert file.stat().st_mode & 0o777 == 0o600


def test_one_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="File exists"):
        token_file.create(file)
    assert file.read_text() == "mine"


def test_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token_file.create(file)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod o="):
        token_file.read(file)


@pytest.mark.parametrize("text", ["", "{}", "[]", "secret", '{"token": 1}'])
def test_one_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="is no token file"):
        token_file.read(file)


def test_one_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the token file"):
        token_file.read(tmp_path / "none")
