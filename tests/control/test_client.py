"""The client against a server on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.kit import Toy
from tidegate.control.client import ControlClient
from tidegate.control.controls import Controls
from tidegate.control.server import ControlServer
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask


@pytest.fixture
def toy() -> Toy:
    return Toy(name="counts")


@pytest.fixture
def client(toy: Toy, tmp_path: Path) -> Iterator[ControlClient]:
    with ControlServer(toy, checkpoint=tmp_path):
        yield ControlClient.find(tmp_path)


def left_behind(folder: Path, *, url: str = "http://127.0.0.1:1", pid: int | None = None) -> Path:
    """A control.json that nobody has removed."""
    told = {"url": url, "token": "t", "pid": os.getpid() if pid is None else pid, "pipeline": "counts"}
    file = folder / "control.json"
    file.write_text(json.dumps(told))
    return file


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_it_answers_what_the_pipeline_answers(client: ControlClient, toy: Toy) -> None:
    steered: Controls = client
    ask = Ask(nodes=4, parallelism=8, strategy="eager", step="join")
    assert steered.status() == toy.status()
    assert steered.plan(ask) == toy.plan(ask)
    assert steered.apply(ask) == toy.history()[0]
    toy.tick()
    assert steered.history() == toy.history()
    assert client.rescale(1) == toy.history()[0]
    assert steered.status() == toy.status()


def test_a_rebalance_a_savepoint_and_the_stop_are_passed_on(client: ControlClient, toy: Toy) -> None:
    client.apply(Ask(kind="rebalance", bytes=1000, strategy="lazy"))
    assert toy.history()[0].ask == Ask(kind="rebalance", bytes=1000, strategy="lazy")
    assert client.savepoint("saved") == "saved"
    assert toy.saved == ["saved"]
    client.stop()
    assert toy.stopped.is_set()


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (Ask(nodes=17), "17 nodes: there are 16 key groups"),
        (Ask(nodes=0), "nodes: should be greater than or equal to 1, not 0"),
        (Ask(nodes=4, bytes=1), "bytes"),
        (Ask(kind="rebalance", nodes=4), "nodes"),
        (Ask(), "give nodes, parallelism or both"),
        (Ask(nodes=4, step="no"), "there is no keyed step 'no'"),
    ],
)
def test_a_refusal_comes_as_it_was_said(client: ControlClient, toy: Toy, ask: Ask, text: str) -> None:
    for asked in (client.plan, client.apply):
        with pytest.raises(ControlError, match=text):
            asked(ask)
    assert toy.history() == ()


def test_a_refusal_comes_with_its_story(client: ControlClient, toy: Toy) -> None:
    client.apply(Ask(nodes=4))
    toy.tick()
    with pytest.raises(ControlError, match="rescale 1 is under way") as refused:
        client.apply(Ask(nodes=3))
    assert refused.value.story == ("rescale 1 was asked for", "it switched to its route")


def test_a_rescale_that_is_not_there(client: ControlClient) -> None:
    with pytest.raises(ControlError, match="there is no rescale 3;"):
        client.rescale(3)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=f"there is no checkpoint {tmp_path / 'no'}"):
        ControlClient.find(tmp_path / "no")


def test_a_checkpoint_where_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no pipeline with a control API runs on"):
        ControlClient.find(tmp_path)


def test_a_file_whose_process_is_gone(tmp_path: Path) -> None:
    pid = ended_process()
    left_behind(tmp_path, pid=pid)
    with pytest.raises(ControlError, match=f"counts no longer runs on .*: process {pid} has exited"):
        ControlClient.find(tmp_path)


def test_a_file_whose_port_has_nobody(tmp_path: Path) -> None:
    left_behind(tmp_path, url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ControlError, match=r"counts does not answer at .* \(Connection refused\)"):
        ControlClient.find(tmp_path)


def test_a_file_whose_port_has_gone_to_another_pipeline(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with ControlServer(Toy(), checkpoint=tmp_path / "b") as other:
        left_behind(tmp_path / "a", url=other.url)
        with pytest.raises(ControlError, match="counts rejects the token"):
            ControlClient.find(tmp_path / "a")


def test_a_process_of_another_machine_is_not_looked_for_here(tmp_path: Path) -> None:
    left_behind(tmp_path, url="http://pipelines.invalid:1", pid=ended_process())
    with pytest.raises(ControlError, match=r"counts does not answer at http://pipelines\.invalid:1"):
        ControlClient.find(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"url": "http://x:y", "token": "t", "pid": 1, "pipeline": "p"}',
        '{"url": "http://x:1", "token": "t", "pid": "me", "pipeline": "p"}',
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "control.json").write_text(content)
    with pytest.raises(ControlError, match=r"control\.json is damaged"):
        ControlClient.find(tmp_path)


def test_a_file_is_found_in_a_folder_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ControlError, match="Not a directory"):
        ControlClient.find(tmp_path / "file")


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n[]",
    ],
)
def test_whatever_answers_the_error_is_ours(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        client = ControlClient(f"http://127.0.0.1:{listening.getsockname()[1]}", "t")
        with pytest.raises(ControlError):
            client.status()
        thread.join()


def test_who_keeps_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ControlClient(f"http://127.0.0.1:{silent.getsockname()[1]}", "t", timeout=0.05)
        with pytest.raises(ControlError, match=r"does not answer at .* within 0\.05 s"):
            client.status()


def test_it_notices_the_end(toy: Toy, tmp_path: Path) -> None:
    with ControlServer(toy, checkpoint=tmp_path):
        client = ControlClient.find(tmp_path)
        assert client.answers()
    assert not client.answers()
