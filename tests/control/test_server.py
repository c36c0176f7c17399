"""The server thread and the file that says where it is."""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.control.kit import Toy, await_that, call
from tidegate.control.server import ControlServer
from tidegate.errors import ControlError


def test_the_file_says_where_and_who(tmp_path: Path) -> None:
    checkpoint = tmp_path / "not" / "yet"
    with ControlServer(Toy(name="counts"), checkpoint=checkpoint) as server:
        told = json.loads((checkpoint / "control.json").read_text())
        assert told == {
            "url": server.url,
            "token": server.token,
            "pid": os.getpid(),
            "pipeline": "counts",
            "authority": None,
            "name": None,
        }
        assert call(told["url"], "GET", "/status", token=told["token"])[0] == 200


def test_only_its_owner_may_read_the_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with ControlServer(Toy(), checkpoint=tmp_path):
            assert stat.S_IMODE((tmp_path / "control.json").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_file_left_by_somebody_else_does_not_lend_its_mode(tmp_path: Path) -> None:
    (tmp_path / "control.json").write_text("{}")
    (tmp_path / "control.json").chmod(0o644)
    with ControlServer(Toy(), checkpoint=tmp_path):
        assert stat.S_IMODE((tmp_path / "control.json").stat().st_mode) == 0o600


def opened() -> int:
    """Files and sockets of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    threads = threading.active_count()
    files = opened()
    for _ in range(5):
        with ControlServer(Toy(), checkpoint=tmp_path) as server:
            url = server.url
            call(url, "GET", "/health")
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(ConnectionRefusedError):
            call(url, "GET", "/health")
    # Threads that have served a request wait for another one for a while.
    await_that(lambda: "tidegate-control" not in [thread.name for thread in threading.enumerate()])
    assert threading.active_count() <= threads + 2
    assert opened() <= files


def test_the_file_of_a_later_driver_stays(tmp_path: Path) -> None:
    with ControlServer(Toy(), checkpoint=tmp_path) as later:
        with ControlServer(Toy(), checkpoint=tmp_path) as earlier:
            (tmp_path / "control.json").write_text(json.dumps({"token": later.token}))
            assert earlier.token != later.token
        assert json.loads((tmp_path / "control.json").read_text()) == {"token": later.token}
    assert not (tmp_path / "control.json").exists()


def test_the_file_goes_too_when_the_pipeline_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ControlServer(Toy(), checkpoint=tmp_path):
        raise ZeroDivisionError
    assert not (tmp_path / "control.json").exists()


def test_each_run_has_its_own_token(tmp_path: Path) -> None:
    tokens = {ControlServer(Toy(), checkpoint=tmp_path).token for _ in range(10)}
    assert len(tokens) == 10
    assert min(map(len, tokens)) >= 32


def test_a_port_of_choice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ControlServer(Toy(), checkpoint=tmp_path, port=port) as server:
        assert server.url == f"http://127.0.0.1:{port}"


def test_every_address_is_reached_by_loopback(tmp_path: Path) -> None:
    with ControlServer(Toy(), checkpoint=tmp_path, bind="0.0.0.0") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert call(server.url, "GET", "/health")[0] == 200


@pytest.mark.parametrize("bind", ["127.0.0.1", "no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_cannot_be_had_is_named(tmp_path: Path, bind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ControlError, match=rf"cannot listen at {bind}, port {port}: "),
            ControlServer(Toy(), checkpoint=tmp_path, bind=bind, port=port),
        ):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_written_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "control.json").mkdir()
    server = ControlServer(Toy(), checkpoint=tmp_path)
    with pytest.raises(ControlError, match=r"cannot write .*control\.json: "), server:
        pass
    with pytest.raises(ConnectionRefusedError):
        call(server.url, "GET", "/health")


def test_a_request_that_takes_its_time_does_not_hold_up_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Slow(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.over = threading.Event(), threading.Event()

        def savepoint(self, place: str) -> str:
            self.begun.set()
            self.over.wait(60)
            return place

    toy = Slow()
    answers: list[tuple[int, object]] = []

    def save(server: ControlServer) -> None:
        body = {"place": "saved"}
        answers.append(call(server.url, "POST", "/savepoint", body, token=server.token))

    with ControlServer(toy, checkpoint=tmp_path) as server:
        asker = threading.Thread(target=save, args=(server,))
        asker.start()
        assert toy.begun.wait(30)
    assert not toy.over.is_set()
    asker.join(30)
    toy.over.set()
    assert answers == [(503, {"error": "the pipeline has ended"})]
    assert capfd.readouterr().err == ""


def test_an_idle_connection_is_closed_at_the_end(tmp_path: Path) -> None:
    with ControlServer(Toy(), checkpoint=tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        idle = socket.create_connection(("127.0.0.1", port))
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = http.client.HTTPResponse(idle)
        answer.begin()
        assert answer.read() == b'{"ok":true}'
    assert "tidegate-control" not in [thread.name for thread in threading.enumerate()]
    with idle:
        assert idle.recv(65_536) == b""


def test_signals_and_logging_are_left_alone(tmp_path: Path) -> None:
    def seen() -> object:
        names = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "fastapi")
        loggers = [logging.getLogger(name) for name in names]
        return (
            [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
            [(logger.level, list(logger.handlers), logger.propagate) for logger in loggers],
        )

    before = seen()
    with ControlServer(Toy(), checkpoint=tmp_path) as server:
        call(server.url, "GET", "/health")
        assert seen() == before
    assert seen() == before


def test_who_does_not_serve_does_not_import_the_server() -> None:
    program = """
import sys
from pathlib import Path
from tidegate.rescale.model import Ask
from tidegate.control.server import ControlServer
ControlServer(None, checkpoint=Path("x"))
print(sorted({"fastapi", "uvicorn", "starlette", "pydantic"} & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
