"""Secrets and certificates that are given as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.security.kit import Given, write
from tidegate.errors import SecurityError
from tidegate.security.authority import Authority
from tidegate.security.files import ends, read_authority, read_credentials, read_secret


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return write(tmp_path, Authority("counts.example.org"))


def test_what_fits_together_is_taken_with_its_name(given: Given) -> None:
    found = read_credentials(*given)
    assert found.name == "counts.example.org"
    assert found.certificate == given[0].read_text()
    assert ends(found) > datetime.now(UTC) + timedelta(days=300)


def test_a_key_that_everybody_may_read_is_refused(given: Given) -> None:
    given[1].chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        read_credentials(*given)
    given[1].chmod(0o640)
    assert read_credentials(*given).name


def test_each_part_must_fit_the_others(given: Given, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificate, key, authority = write(tmp_path / "other", Authority("counts.example.org"))
    with pytest.raises(SecurityError, match="does not belong to the certificate"):
        read_credentials(given[0], key, given[2])
    with pytest.raises(SecurityError, match="is not signed by the authority"):
        read_credentials(given[0], given[1], authority)
    with pytest.raises(SecurityError, match="holds no certificate"):
        read_credentials(given[1], given[1], given[2])
    with pytest.raises(SecurityError, match="holds no private key"):
        read_credentials(given[0], certificate, given[2])
    with pytest.raises(SecurityError, match="cannot read"):
        read_credentials(given[0], tmp_path / "none", given[2])


def test_a_certificate_that_is_over_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"is valid from .* only"):
        read_credentials(*write(tmp_path, Authority("counts.example.org", valid=timedelta(hours=-1))))


def test_a_chain_is_taken_in_its_order_only(given: Given) -> None:
    leaf, root = given[0].read_text(), given[2].read_text()
    given[0].write_text(leaf + root)
    assert read_credentials(*given).name == "counts.example.org"
    given[0].write_text(leaf + leaf)
    with pytest.raises(SecurityError, match="signed by the next one"):
        read_credentials(*given)


def test_a_secret_is_one_line_that_nobody_else_can_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text("  hunter2\n")
    assert read_secret(file) == "hunter2"
    for text in ("", "\n", "two\nlines", "größe", "x" * 5000):
        file.write_text(text)
        with pytest.raises(SecurityError, match="one line with a secret") as raised:
            read_secret(file)
        assert not text.strip() or text not in str(raised.value)
    file.chmod(0o604)
    with pytest.raises(SecurityError, match="everybody may read"):
        read_secret(file)


def test_an_authority_is_a_certificate(given: Given) -> None:
    assert read_authority(given[2]) == given[2].read_text()
    with pytest.raises(SecurityError, match="holds no certificate"):
        read_authority(given[1])
