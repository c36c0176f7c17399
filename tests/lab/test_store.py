"""A store on a host, and what goes wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.lab.kit import await_that
from tidegate.errors import LabError
from tidegate.lab import Host, Lab

pytestmark = [pytest.mark.lab, pytest.mark.s3]

ASK = """
import sys, time, urllib.error, urllib.request
url, method, content = sys.argv[1], sys.argv[2], sys.argv[3].encode()
request = urllib.request.Request(url, content or None, method=method)
request.add_header("Content-Type", "application/octet-stream")
request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=tidegate/20260101/us-east-1/s3/aws4_request")
begin = time.monotonic()
try:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        print(answer.status, answer.read().decode(), time.monotonic() - begin)
except urllib.error.HTTPError as error:
    print(error.code, error.reason, time.monotonic() - begin)
except OSError as error:
    print("none", type(error).__name__, time.monotonic() - begin)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab({"hosts": {"near": {}, "depot": {}}, "store": {"host": "depot"}}) as running:
        yield running


def ask(lab: Lab, method: str = "GET", content: str = "") -> tuple[str, str, float]:
    """How the store answers a host: code, what it says, seconds."""
    url = f"{lab.store.environment['AWS_ENDPOINT_URL']}/tidegate/file"
    told = said(lab["near"], url, method, content)
    code, *words, took = told.split()
    return code, " ".join(words), float(took)


def said(host: Host, *arguments: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", ASK, *arguments]
    return str(host.run(command, check=True, capture_output=True, text=True).stdout)


def test_it_keeps_what_hosts_give_it(lab: Lab) -> None:
    assert ask(lab, "PUT", "content")[0] == "200"
    assert ask(lab)[:2] == ("200", "content")


def test_it_is_slow_until_that_is_healed(lab: Lab) -> None:
    with lab.store.slow("400 ms"), lab.store.slow("100 ms"):
        code, _, took = ask(lab)
    assert code == "200"
    assert took >= 0.4
    await_that(lambda: ask(lab)[2] < 0.4, "it is as fast as before")


def test_it_answers_503_and_does_not_carry_out(lab: Lab) -> None:
    ask(lab, "PUT", "before")
    with lab.store.errors():
        assert ask(lab, "PUT", "after")[0] == "503"
    assert ask(lab)[:2] == ("200", "before")
    with lab.store.errors(0.5):
        assert {ask(lab)[0] for _ in range(30)} == {"200", "503"}


def test_away_it_answers_nobody(lab: Lab) -> None:
    with lab.store.away():
        assert ask(lab)[0] == "none"
    assert ask(lab)[0] == "200"


def test_chaos_befalls_it(lab: Lab) -> None:
    schedule: list[dict[str, object]] = [
        {"do": "store-errors", "share": 0.25, "at": "0 s", "for": "1 hour"},
        {"do": "store-away", "at": "10 ms", "for": "100 ms"},
        {"do": "store-slow", "delay": "1 s", "at": "20 ms", "for": "50 ms"},
    ]
    with lab.chaos(schedule) as chaos:
        await_that(lambda: len(chaos.deeds) == 5, "but for the errors it is over")
    assert [deed.what for deed in chaos.deeds] == [
        "the store answers 25% of requests by 503",
        "the store away",
        "the store takes 1 s per request",
        "over: the store takes 1 s per request",
        "over: the store away",
        "over: the store answers 25% of requests by 503",
    ]
    assert ask(lab)[0] == "200"


def test_a_store_that_stands_still_can_be_told_to_go_wrong(lab: Lab) -> None:
    schedule: list[dict[str, object]] = [
        {"do": "freeze", "host": "depot", "at": "0 s", "for": "300 ms"},
        {"do": "store-errors", "at": "10 ms", "for": "1 hour"},
    ]
    with lab.chaos(schedule) as chaos:
        await_that(lambda: len(chaos.deeds) == 3, "it is told, and the store goes on")
        assert ask(lab)[0] == "503"
    assert ask(lab)[0] == "200"


def test_a_lab_without_a_store_says_how_to_have_one() -> None:
    with Lab({"hosts": {"a": {}}}) as without, pytest.raises(LabError, match=r"declare it, like \[store\]"):
        _ = without.store


def test_a_store_that_has_ended_says_so() -> None:
    with Lab({"hosts": {"depot": {}}, "store": {"host": "depot"}}) as lab:
        lab["depot"].kill()
        with pytest.raises(LabError, match="the store on host depot has ended, and what it held is gone"):
            lab.store.away()
