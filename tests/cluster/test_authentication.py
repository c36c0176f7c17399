"""Spark's own authentication, by the configuration."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tidegate.cluster.authentication import check_session, spark_settings
from tidegate.config.settings import SecuritySettings
from tidegate.errors import ConfigError

SECRET, CRYPTO = "spark.authenticate.secret", "spark.network.crypto.enabled"
FAR = "spark://far:7077"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text("hunter2\n")
    return str(file)


def test_a_local_spark_listens_on_loopback_and_authenticates() -> None:
    found = spark_settings("local[2]", SecuritySettings(), {})
    assert found["spark.authenticate"] == "true"
    assert found["spark.driver.bindAddress"] == found["spark.driver.host"] == "127.0.0.1"
    assert CRYPTO not in found


@pytest.mark.parametrize("master", ["k8s://https://far:6443", "yarn"])
def test_where_spark_distributes_a_secret_itself_it_is_asked_to(master: str) -> None:
    found = spark_settings(master, SecuritySettings(), {})
    assert found["spark.authenticate"] == found[CRYPTO] == "true"
    assert SECRET not in found


def test_a_master_elsewhere_is_told_its_secret(secret: str) -> None:
    found = spark_settings(FAR, SecuritySettings(spark_secret_file=secret), {})
    assert (found[SECRET], found[CRYPTO]) == ("hunter2", "true")
    plain = spark_settings(FAR, SecuritySettings(spark_secret_file=secret, tls="off", spark="on"), {})
    assert plain[SECRET] == "hunter2"
    assert CRYPTO not in plain


def test_a_master_elsewhere_without_a_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"security\.spark_secret_file"):
        spark_settings(FAR, SecuritySettings(), {})
    with pytest.raises(ConfigError, match="has to know who talks to it"):
        spark_settings("spark://127.0.0.1:7077", SecuritySettings(spark="on"), {})
    assert spark_settings("spark://127.0.0.1:7077", SecuritySettings(), {}) == {}


@pytest.mark.parametrize("how", [SecuritySettings(spark="off"), SecuritySettings(tls="off")])
def test_who_wants_none_gets_none_and_a_warning(
    how: SecuritySettings, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert spark_settings(FAR, how, {}) == {}
    assert "Spark does not check who talks to it" in caplog.text


def test_what_the_user_says_of_it_in_sparks_own_words_decides() -> None:
    assert spark_settings(FAR, SecuritySettings(), {"spark.authenticate": "false"}) == {}


@pytest.mark.parametrize("master", [FAR, "k8s://https://far:6443", "yarn"])
def test_a_session_that_is_there_already_has_to_be_as_safe(master: str) -> None:
    with pytest.raises(ConfigError, match=r"without spark\.authenticate and spark\.network\.crypto\.enabled"):
        check_session(master, SecuritySettings(), {})
    with pytest.raises(ConfigError, match=r"without spark\.network\.crypto\.enabled: start it"):
        check_session(master, SecuritySettings(), {"spark.authenticate": "true"})
    check_session(master, SecuritySettings(), {"spark.authenticate": "true", CRYPTO: "true"})
    check_session(master, SecuritySettings(tls="off", spark="on"), {"spark.authenticate": "true"})


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:7077"])
def test_a_session_of_this_machine_may_be_as_it_is(master: str) -> None:
    check_session(master, SecuritySettings(), {})


@pytest.mark.parametrize("how", [SecuritySettings(spark="off"), SecuritySettings(tls="off")])
def test_a_session_that_need_not_be_safe_is_warned_of(
    how: SecuritySettings, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_session(FAR, how, {})
    assert "Spark does not check who talks to it" in caplog.text
