"""The control API over TLS, from this machine and from others."""

from __future__ import annotations

import http.client
import json
import ssl
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from tests.control.kit import Toy
from tidegate.cli.main import app
from tidegate.control.client import ControlClient
from tidegate.control.server import ControlServer
from tidegate.errors import ControlError
from tidegate.security.authority import Authority
from tidegate.security.security import Security


def tidegate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def secret(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def security() -> Security:
    return Security.of_run("counts", tls=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(scope="module")
def server(security: Security, checkpoint: Path) -> Iterator[ControlServer]:
    toy = Toy(name="counts")
    with ControlServer(toy, checkpoint=checkpoint, bind="127.0.0.3", security=security) as running:
        yield running


@pytest.fixture
def authority(security: Security) -> str:
    assert security.authority is not None
    return security.authority.certificate


def test_the_checkpoint_tells_all_that_its_user_needs(server: ControlServer, checkpoint: Path) -> None:
    assert server.url.startswith("https://127.0.0.3:")
    assert ControlClient.find(checkpoint).status().pipeline == "counts"
    assert tidegate("status", checkpoint).stdout.startswith("counts is running\n")
    file = checkpoint / "control.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "PRIVATE KEY" not in file.read_text()


def test_from_elsewhere_it_takes_the_token_and_the_authority(
    server: ControlServer, authority: str, tmp_path: Path
) -> None:
    token, trusted = secret(tmp_path / "token", server.token), secret(tmp_path / "ca.pem", authority)
    how = "--token-file", token, "--authority", trusted
    assert tidegate("status", server.url, *how).stdout.startswith("counts is running\n")
    assert json.loads(tidegate("history", server.url, "--json", *how).stdout) == {"rescales": []}
    assert tidegate("plan", server.url, "--nodes", 3, *how).exit_code == 0
    without = tidegate("status", server.url, "--token-file", token)
    assert isinstance(without.exception, ControlError)
    assert "does not prove that it is" in str(without.exception)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["https://127.0.0.3:1"], "--token-file"),
        ([".tidegate/p", "--token-file", "x"], "go with the URL"),
    ],
)
def test_what_does_not_go_together_is_said(given: list[str], said: str) -> None:
    result = tidegate("status", *given)
    assert result.exit_code == 2
    assert said in result.output


def test_a_token_that_everybody_may_read_is_not_taken(server: ControlServer, tmp_path: Path) -> None:
    token = secret(tmp_path / "token", server.token)
    token.chmod(0o644)
    result = tidegate("status", server.url, "--token-file", token)
    assert "chmod 600" in str(result.exception)


@pytest.mark.parametrize("why", ["another authority", "another name", "over"])
def test_a_server_that_is_not_the_pipeline_is_not_told_the_token(
    why: str, authority: str, security: Security, tmp_path: Path
) -> None:
    assert security.authority is not None
    posing = Authority("other.tidegate" if why == "another name" else security.authority.name)
    if why != "another authority":
        posing._key, posing._certificate = security.authority._key, security.authority._certificate
    if why == "over":
        posing._valid = timedelta(hours=-1)
    other = Security("other", posing.issue("control", ["127.0.0.4"]), authority=posing)
    with ControlServer(Toy(), checkpoint=tmp_path, bind="127.0.0.3", security=other):
        told = json.loads((tmp_path / "control.json").read_text())
        assert security.tls is not None
        told |= {"authority": authority, "name": security.tls.name}
        (tmp_path / "control.json").write_text(json.dumps(told))
        with pytest.raises(ControlError, match="does not prove that it is"):
            ControlClient.find(tmp_path)


def test_what_knows_the_authority_alone_goes_by_the_address(server: ControlServer, authority: str) -> None:
    """As curl does."""
    context = ssl.create_default_context(cadata=authority)
    port = urlsplit(server.url).port
    connection = http.client.HTTPSConnection("127.0.0.3", port, context=context, timeout=30)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


def test_plain_http_gets_nothing(server: ControlServer) -> None:
    port = urlsplit(server.url).port
    connection = http.client.HTTPConnection("127.0.0.3", port, timeout=30)
    connection.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()


def test_without_the_token_there_is_no_stop(server: ControlServer, authority: str) -> None:
    with pytest.raises(ControlError, match="rejects the token"):
        ControlClient.at(server.url, token="wrong", authority=authority)
