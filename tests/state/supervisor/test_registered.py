"""A supervisor whose registry is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.state.gated import Gated
from tests.state.node_kit import await_that
from tidegate.errors import StorageError
from tidegate.security.security import Security
from tidegate.state.supervisor import registered
from tidegate.state.supervisor.registry import Registry


@dataclass
class Served:
    """One in a thread."""

    storage: Gated = field(default_factory=Gated)
    leave: Event = field(default_factory=Event)
    end: Event = field(default_factory=Event)

    @contextmanager
    def running(self, scratch: Path) -> Iterator[Thread]:
        thread = Thread(target=self.serve, args=(scratch,))
        thread.start()
        try:
            yield thread
        finally:
            self.end.set()
            thread.join(10)

    def serve(self, scratch: Path) -> None:
        registered.serve(
            "127.0.0.1",
            0,
            registry=Registry(self.storage),
            security=Security.of_run("nodes", tls=True),
            scratch=scratch,
            leave=self.leave,
            end=self.end,
        )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(registered, "announce", lambda line: None)  # Standard output is that of the tests.
    monkeypatch.setattr(registered, "_FORGET", 0.5)
    monkeypatch.setattr(registered, "HEARTBEAT", 0.0)
    return Served()


def test_it_ends_at_once_also_while_it_makes_itself_known(served: Served, tmp_path: Path) -> None:
    with served.running(tmp_path) as thread:
        await_that(lambda: bool(served.storage.names()))
        with served.storage.away():
            assert served.storage.waits.wait(30)
            served.end.set()
            thread.join(30)
            assert not thread.is_alive()


def test_it_ends_at_once_also_when_it_was_never_known(served: Served, tmp_path: Path) -> None:
    with served.storage.away(), served.running(tmp_path) as thread:
        assert served.storage.waits.wait(30)
        served.end.set()
        thread.join(30)
        assert not thread.is_alive()


def test_it_is_known_until_it_ends(served: Served, tmp_path: Path) -> None:
    with served.running(tmp_path) as thread:
        await_that(lambda: bool(served.storage.names()))
        with served.storage.away():
            assert served.storage.waits.wait(30)
        served.leave.set()
        thread.join(30)
        assert not thread.is_alive()
        assert served.storage.names() == []


def test_one_that_cannot_make_itself_known_does_not_serve(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the store is away")

    monkeypatch.setattr(served.storage, "write", fail)
    with pytest.raises(StorageError, match="is away"):
        served.serve(tmp_path)
