"""Which security a run has by its configuration."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.security.kit import write
from tidegate import config as configuration
from tidegate.config import Config
from tidegate.errors import ConfigError
from tidegate.run.protection import of_control, secured, wants_tls
from tidegate.security.authority import Authority


def settings(**given: str) -> Config:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return configuration.load(environ={}, overrides=named)


@pytest.mark.parametrize(
    ("given", "tls"),
    [
        ({}, False),
        ({"control__bind": "127.0.0.5"}, False),
        ({"control__bind": "10.0.0.5"}, True),
        ({"control__bind": "0.0.0.0"}, True),
        ({"control__bind": "0.0.0.0", "control__enabled": "false"}, False),
        ({"state__bind": "10.0.0.5"}, True),
        ({"state__bind": "127.0.0.1"}, True),
        ({"security__tls": "on"}, True),
        ({"state__provider": "executors"}, True),
        ({"state__bind": "10.0.0.5", "security__tls": "off"}, False),
    ],
)
def test_tls_is_on_wherever_something_listens(given: dict[str, str], tls: bool) -> None:
    config = settings(**given)
    found = secured(config, "counts")
    assert wants_tls(config) == tls == (found.tls is not None)
    assert len(found.token) > 40


def test_without_tls_off_loopback_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert secured(settings(security__tls="off"), "counts").plain
        assert not caplog.records
        secured(settings(security__tls="off", state__bind="10.0.0.5", control__bind="::"), "counts")
    (told,) = caplog.records
    assert "security.tls is off" in told.getMessage()
    assert "its state nodes and its control API" in told.getMessage()


def test_certificates_that_are_given_are_used(tmp_path: Path) -> None:
    certificate, key, authority = write(tmp_path, Authority("counts.example.org"))
    given = {
        "security__certificate": str(certificate),
        "security__key": str(key),
        "security__authority": str(authority),
    }
    found = secured(settings(**given), "counts")
    assert found.tls is not None
    assert (found.tls.name, found.authority) == ("counts.example.org", None)
    assert found.party("node") == found.party("task") == found
    with pytest.raises(ConfigError, match="must not be set"):
        secured(settings(**given, security__tls="off"), "counts")
    with pytest.raises(ConfigError, match=r"set security\.certificate, security\.key and"):
        secured(settings(security__key=str(key)), "counts")


def test_a_certificate_that_ends_soon_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from datetime import timedelta

    soon = Authority("counts.example.org", valid=timedelta(days=3))
    names = "security__certificate", "security__key", "security__authority"
    given = dict(zip(names, map(str, write(tmp_path, soon)), strict=True))
    with caplog.at_level(logging.WARNING):
        secured(settings(**given), "counts")
    assert "ends in 2 days" in caplog.text


def test_the_control_api_may_have_a_token_of_its_own(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("hunter2")
    config = settings(control__token_file=str(token), security__tls="on")
    mine = secured(config, "counts")
    theirs = of_control(config, mine)
    assert theirs.token == "hunter2" != mine.token
    assert theirs.authority is mine.authority is not None
    assert of_control(settings(), mine) is mine
