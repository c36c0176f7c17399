"""A store behind the proxy has the faults that were set, and a store without faults is the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tidegate.errors import StorageError
from tidegate.storage.remote import Remote
from tidegate.testing.servers import S3, FaultyStore, faulty_store

pytestmark = pytest.mark.s3


@pytest.fixture
def store(s3_server: S3, s3_place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    with faulty_store(s3_server.endpoint) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        yield store


def test_without_faults_it_is_the_store(store: FaultyStore, s3_place: str) -> None:
    storage = Remote(s3_place)
    storage.write("a", [b"one ", b"two"])
    assert storage.size("a") == 7
    assert [part.to_pybytes() for part in storage.read("a", [(4, 3)])] == [b"two"]
    assert storage.names() == ["a"]
    storage.delete("a")
    assert storage.names() == []
    assert {action: store.asked(action) for action in ("PUT", "HEAD", "LIST")} == {
        "PUT": 1,
        "HEAD": 1,
        "LIST": 2,
    }


def test_a_busy_store_is_asked_again(store: FaultyStore, s3_place: str) -> None:
    store.busy = 0.5
    storage = Remote(s3_place)
    for number in range(10):
        assert storage.create(f"{number}", b"x")
    assert store.asked("PUT") > 10


def test_a_store_that_is_away_is_waited_for(store: FaultyStore, s3_place: str) -> None:
    storage = Remote(s3_place)
    store.away = True
    threading.Timer(1.5, setattr, (store, "away", False)).start()
    assert storage.create("a", b"x")
    assert storage.open("a").to_pybytes() == b"x"


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_of_a_creation_whose_answer_is_lost_it_is_known_who_did_it(
    store: FaultyStore, s3_place: str, share: float
) -> None:
    storage = Remote(s3_place)
    assert storage.create("theirs", b"x")
    store.forgetful = share
    if share == 1.0:
        threading.Timer(1.5, setattr, (store, "forgetful", 0.0)).start()
    assert [storage.create(f"{number}", b"x") for number in range(5)] == [True] * 5
    assert not storage.create("theirs", b"mine")


def test_a_slow_store_takes_its_time(store: FaultyStore, s3_place: str) -> None:
    storage = Remote(s3_place)
    store.delay = 0.3
    began = time.monotonic()
    storage.write("a", [b"x"])
    assert time.monotonic() - began >= 0.3


def test_the_end_of_the_block_ends_it(s3_server: S3, s3_place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_store(s3_server.endpoint) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    with pytest.raises(StorageError):
        Remote(s3_place, patience=0.1).names()
