"""`tidegate node` as it is typed; what it does is tested with supervisors."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.errors import ConfigError
from tidegate.security import token_file


def called(*arguments: str) -> None:
    CliRunner().invoke(app, ["node", *arguments], catch_exceptions=False)


def test_a_token_file_is_made_and_its_secret_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    done = CliRunner().invoke(app, ["node", "--new-token-file", str(file)])
    assert done.exit_code == 0
    assert token_file.read(file).token not in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "127.0.0.1"], "needs --listen, --token-file and --register"),
        (["--listen", "0.0.0.0:7400"], "drivers need one address to connect to"),
        (["--listen", "here:port"], "is no address to listen on"),
        (["--listen", "here:70000"], "is no address to listen on"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, arguments: list[str], said: str) -> None:
    more = ["--token-file", str(tmp_path / "none"), "--register", str(tmp_path)]
    with pytest.raises(ConfigError, match=said):
        called(*arguments, *(more if "needs" not in said else []))
