"""The servers that tests run on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.testing.servers import ServerError, broker, database, kafka, postgres
from tidegate.testing.servers.daemon import free_port, running


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.postgres
def test_postgres_comes_and_goes() -> None:
    import psycopg

    with postgres() as dsn:
        with psycopg.connect(dsn) as connection:
            (home,) = connection.execute("show unix_socket_directories").fetchone() or ("",)
            port = connection.info.port
        assert Path(home).is_dir()
    assert not Path(home).exists()
    assert not listens(port)


@pytest.mark.kafka
def test_kafka_comes_and_goes() -> None:
    from confluent_kafka.admin import AdminClient

    with kafka() as bootstrap:
        topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        assert topics == {}
    assert not listens(int(bootstrap.rpartition(":")[2]))


@pytest.mark.postgres
def test_server_dies_with_the_process_that_asked_for_it() -> None:
    script = """
from tidegate.testing.servers import postgres
with postgres() as dsn:
    print(dsn, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline().rpartition(":")[2].partition("/")[0])
        assert listens(port)
        os.kill(owner.pid, signal.SIGKILL)
        assert until(lambda: not listens(port))


def test_server_that_ends_at_start_shows_its_last_words(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo the disk is full; exit 3"]
    with (
        pytest.raises(ServerError, match=r"Thing exited at start with status 3:\nthe disk is full"),
        running(
            command, name="Thing", log=tmp_path / "log", answers=lambda: False, stop_signal=signal.SIGTERM
        ),
    ):
        pass


def test_free_port_is_free() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


def test_missing_postgres_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(database, "_PLACES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="apt-get install -y --no-install-recommends postgresql"):
        database.installed()


def test_missing_java_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ServerError, match="apt-get install -y openjdk-17-jre-headless"):
        broker.installed()


def test_failed_download_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho no network; exit 1\n")
    java.chmod(0o755)
    monkeypatch.setattr(broker, "_java", lambda: str(java))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        ServerError, match=r"could not be downloaded; with a working network, try: .*\nno network"
    ):
        broker.installed()
    assert [place.name for place in (tmp_path / "tidegate").iterdir()] == ["ivy.lock"]


def test_of_two_that_need_the_broker_one_downloads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ivy's cache breaks when two fill it at once."""
    calls, java = tmp_path / "calls", tmp_path / "java"
    java.write_text(
        f"#!/bin/sh\necho called >>{calls}\nsleep 0.2\n"
        'while [ "$1" != -retrieve ]; do shift; done; touch "${2%/*}/kafka_2.13.jar"\n'
    )
    java.chmod(0o755)
    monkeypatch.setattr(broker, "_java", lambda: str(java))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        found = [asked.result() for asked in [pool.submit(broker.installed) for _ in range(2)]]
    assert found[0] == found[1]
    assert (found[0] / "kafka_2.13.jar").exists()
    assert calls.read_text() == "called\n"
