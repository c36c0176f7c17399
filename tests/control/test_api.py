"""The routes of the control API, over real HTTP."""

from __future__ import annotations

import logging
import math
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.control.kit import Toy, call, ticking
from tidegate.control.api import PlanBody, RebalanceBody, ScaleBody
from tidegate.control.controls import Status
from tidegate.control.server import ControlServer
from tidegate.rescale.model import Ask

ROUTES: list[tuple[str, str, dict[str, object] | None]] = [
    ("GET", "/status", None),
    ("POST", "/plan", {"nodes": 4}),
    ("POST", "/scale", {"nodes": 4}),
    ("GET", "/scale?stage=1", None),
    ("POST", "/rebalance", {}),
    ("POST", "/savepoint", {"place": "saved"}),
    ("POST", "/stop", None),
    ("GET", "/history", None),
    ("GET", "/history/1", None),
]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlServer, Toy]]:
    """One server for all tests that change nothing, and what it serves."""
    toy = Toy()
    with ControlServer(toy, checkpoint=tmp_path_factory.mktemp("calm"), scale_by_get=True) as running:
        yield running, toy


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def server(toy: Toy, tmp_path: Path) -> Iterator[ControlServer]:
    with ControlServer(toy, checkpoint=tmp_path, scale_by_get=True) as running:
        yield running


def ask(server: ControlServer, method: str, path: str, body: object = None) -> tuple[int, Any]:
    return call(server.url, method, path, body, token=server.token)


def refusal(server: ControlServer, method: str, path: str, body: object = None) -> tuple[int, str]:
    """The status and the line of an answer that must hold nothing else."""
    status, answer = ask(server, method, path, body)
    assert list(answer) == ["error"]
    assert "\n" not in answer["error"]
    assert "Traceback" not in answer["error"]
    return status, answer["error"]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
@pytest.mark.parametrize("token", [None, "", "wrong", "ü"])
def test_nothing_happens_without_the_token(
    calm: tuple[ControlServer, Toy], method: str, path: str, body: object, token: str | None
) -> None:
    server, toy = calm
    status, answer = call(server.url, method, path, body, token=token)
    assert status == 401
    assert "control.json" in answer["error"]
    assert (toy.history(), toy.saved, toy.stopped.is_set()) == ((), [], False)


def test_a_part_of_the_token_is_not_enough(calm: tuple[ControlServer, Toy]) -> None:
    server, _ = calm
    assert call(server.url, "GET", "/status", token=server.token[:-1])[0] == 401
    assert call(server.url, "GET", "/status", token=server.token + "x")[0] == 401


def test_every_route_of_the_page_wants_the_token_but_health(calm: tuple[ControlServer, Toy]) -> None:
    server, _ = calm
    _, page = call(server.url, "GET", "/openapi.json")
    routes = {(method.upper(), path) for path, methods in page["paths"].items() for method in methods}
    tried = {(method, path.partition("?")[0].replace("/1", "/{number}")) for method, path, _ in ROUTES}
    assert routes == tried | {("GET", "/health")}
    assert page["components"]["securitySchemes"] == {"HTTPBearer": {"type": "http", "scheme": "bearer"}}


def test_the_page_and_health_want_no_token(calm: tuple[ControlServer, Toy]) -> None:
    server, _ = calm
    assert call(server.url, "GET", "/health") == (200, {"ok": True})
    status, page = call(server.url, "GET", "/docs")
    assert status == 200
    assert "/openapi.json" in page


def test_the_page_shows_every_route_and_field_and_loads_nothing(calm: tuple[ControlServer, Toy]) -> None:
    server, _ = calm
    _, page = call(server.url, "GET", "/docs")
    for method, path, body in ROUTES:
        assert f"{method} {path.partition('?')[0].replace('/1', '/{number}')}<" in page
        assert all(f"<code>{name}</code>" in page for name in body or ())
    assert not re.search(r"<(script|link|img|iframe)|://|@import|url\(", page)


@pytest.mark.parametrize("query", ["", "?stage=1"])
def test_a_get_changes_nothing_unless_it_is_allowed_to(tmp_path: Path, toy: Toy, query: str) -> None:
    with ControlServer(toy, checkpoint=tmp_path) as server:
        status, text = refusal(server, "GET", f"/scale{query}")
        assert status == 405
        assert "use POST /scale, or set control.scale_by_get=true" in text
        assert toy.history() == ()
        assert ask(server, "POST", "/scale", {"nodes": 3})[0] == 202
        assert "get" not in call(server.url, "GET", "/openapi.json")[1]["paths"]["/scale"]


def test_status_tells_all_that_there_is(calm: tuple[ControlServer, Toy]) -> None:
    server, _ = calm
    status, answer = ask(server, "GET", "/status")
    assert status == 200
    assert list(answer) == [item.name for item in fields(Status)]
    assert answer["nodes"][1]["groups"] == "8-15"
    assert answer["steps"] == ["count", "join"]


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    class Odd(Toy):
        def status(self) -> Status:
            return replace(super().status(), latency_p50=math.nan, rows_per_second=math.inf)

    with ControlServer(Odd(), checkpoint=tmp_path) as server:
        status, answer = ask(server, "GET", "/status")
    assert (status, answer["latency_p50"], answer["rows_per_second"]) == (200, None, None)


def test_a_plan_changes_nothing(calm: tuple[ControlServer, Toy]) -> None:
    server, toy = calm
    status, answer = ask(server, "POST", "/plan", {"nodes": 4})
    assert status == 200
    assert answer["nodes"] == [2, 4]
    assert answer["moves"][0] == {
        "source": 0,
        "target": 1,
        "groups": "4-7",
        "rows": 2000,
        "bytes": 4_000_000,
        "load": 0.25,
    }
    assert toy.history() == ()


def test_a_plan_of_a_rebalance(calm: tuple[ControlServer, Toy]) -> None:
    server, _ = calm
    status, answer = ask(server, "POST", "/plan", {"kind": "rebalance", "bytes": 10})
    assert status == 200
    assert answer["ask"] == {
        "kind": "rebalance",
        "nodes": None,
        "parallelism": None,
        "strategy": None,
        "step": None,
        "bytes": 10,
    }


def test_a_scale_is_in_the_history_at_once(server: ControlServer, toy: Toy) -> None:
    body = {"nodes": 4, "parallelism": 8, "strategy": "lazy", "step": "join"}
    status, answer = ask(server, "POST", "/scale", body)
    assert (status, answer["number"], answer["phase"]) == (202, 1, "starting")
    assert toy.history()[0].ask == Ask(nodes=4, parallelism=8, strategy="lazy", step="join")
    assert ask(server, "GET", "/history") == (200, [answer])
    assert ask(server, "GET", "/history/1") == (200, answer)


def test_a_rescale_is_followed_by_its_number(server: ControlServer, toy: Toy) -> None:
    ask(server, "POST", "/scale", {"nodes": 4})
    phases = []
    for _ in range(6):
        phases.append(ask(server, "GET", "/history/1")[1]["phase"])
        toy.tick()
    assert phases == ["starting", "moving", "moving", "moving", "moving", "settled"]
    assert len(ask(server, "GET", "/status")[1]["nodes"]) == 4


def test_a_rebalance(server: ControlServer, toy: Toy) -> None:
    assert ask(server, "POST", "/rebalance", {"bytes": 1000})[0] == 202
    assert toy.history()[0].ask == Ask(kind="rebalance", bytes=1000)


def test_a_stage_gets_one_more_node(server: ControlServer, toy: Toy) -> None:
    status, answer = ask(server, "GET", "/scale?stage=2")
    assert (status, answer["nodes"]) == (202, [2, 3])
    assert toy.history()[0].ask == Ask(nodes=3, step="join")


def test_one_more_counts_from_the_rescale_under_way(server: ControlServer, toy: Toy) -> None:
    ask(server, "GET", "/scale?stage=1")
    assert ask(server, "GET", "/scale?stage=1")[1]["nodes"] == [2, 4]
    assert [each.phase for each in toy.history()] == ["replaced", "starting"]


@pytest.mark.parametrize("stage", ["0", "3", "-1"])
def test_an_unknown_stage_is_not_found(calm: tuple[ControlServer, Toy], stage: str) -> None:
    server, toy = calm
    status, text = refusal(server, "GET", f"/scale?stage={stage}")
    assert status == 404
    assert text == f"stage: there is no stage {stage}, only 1 (count), 2 (join)"
    assert toy.history() == ()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/scale", {"nodes": 0}, 422, "nodes: should be greater than or equal to 1, not 0"),
        ("POST", "/scale", {"nodes": -3}, 422, "nodes: should be greater than or equal to 1, not -3"),
        ("POST", "/scale", {"nodes": "4"}, 422, "nodes: should be a valid integer, not '4'"),
        ("POST", "/scale", {"nodes": True}, 422, "nodes: should be a valid integer, not True"),
        ("POST", "/scale", {"nodes": 2.5}, 422, "nodes: should be a valid integer, not 2.5"),
        ("POST", "/scale", {"nodes": 10**30}, 422, "nodes: should be less than or equal to 65536"),
        ("POST", "/scale", {"parallelism": 0}, 422, "parallelism: should be greater"),
        ("POST", "/scale", {"nods": 4}, 422, "nods: unknown field"),
        ("POST", "/scale", {"nodes": 4, "bytes": 1}, 422, "bytes: unknown field"),
        ("POST", "/scale", {"nodes": 4, "strategy": "fast"}, 422, "strategy: should be 'restart', 'eager'"),
        (
            "POST",
            "/scale",
            {"nodes": 4, "step": "no"},
            400,
            "step: there is no keyed step 'no', only count",
        ),
        ("POST", "/scale", {"strategy": "lazy"}, 422, "give nodes, parallelism or both"),
        ("POST", "/scale", {}, 422, "give nodes, parallelism or both"),
        ("POST", "/scale", None, 422, "the body must be a JSON object"),
        ("POST", "/scale", [4], 422, "the body must be a JSON object"),
        ("POST", "/scale", {"nodes": 17}, 409, "17 nodes: there are 16 key groups"),
        ("POST", "/rebalance", {"nodes": 4}, 422, "nodes: unknown field"),
        ("POST", "/rebalance", {"bytes": 0}, 422, "bytes: should be greater than or equal to 1, not 0"),
        ("POST", "/rebalance", {"step": "no"}, 400, "step: there is no keyed step 'no'"),
        ("POST", "/plan", {"nodes": 4, "bytes": 1}, 422, "bytes is only for a rebalance"),
        ("POST", "/plan", {"kind": "rebalance", "nodes": 4}, 422, "a rebalance keeps nodes"),
        ("POST", "/plan", {"kind": "grow"}, 422, "kind: should be 'scale' or 'rebalance', not 'grow'"),
        ("POST", "/plan", {"nodes": 4, "step": "no"}, 400, "step: there is no keyed step 'no'"),
        ("POST", "/savepoint", {"place": ""}, 422, "place: should have at least 1 character, not ''"),
        ("POST", "/savepoint", {}, 422, "place: is missing"),
        ("GET", "/scale", None, 422, "stage: is missing"),
        ("GET", "/scale?stage=one", None, 422, "stage: should be a valid integer, not 'one'"),
        ("GET", "/history/0", None, 404, "there is no rescale 0; the rescales of this pipeline: none"),
        ("GET", "/history/one", None, 422, "number: should be a valid integer, not 'one'"),
        ("GET", "/nodes", None, 404, "there is no GET /nodes; see /docs for the routes"),
        ("DELETE", "/history", None, 405, "there is no DELETE /history; see /docs for the routes"),
    ],
)
def test_nonsense_is_refused_in_a_line(
    calm: tuple[ControlServer, Toy], method: str, path: str, body: object, status: int, text: str
) -> None:
    server, toy = calm
    before = toy.status()
    got, line = refusal(server, method, path, body)
    assert (got, line[: len(text)]) == (status, text)
    assert len(line) < 150
    assert (toy.status(), toy.history(), toy.saved) == (before, (), [])


@pytest.mark.parametrize("raw", [b"", b"{nodes", b"\xff\xfe", b"[" * 10_000])
def test_a_body_that_is_no_json_is_refused(calm: tuple[ControlServer, Toy], raw: bytes) -> None:
    server, _ = calm
    status, answer = call(server.url, "POST", "/scale", token=server.token, raw=raw)
    assert status in (400, 422)
    assert list(answer) == ["error"]


def test_what_the_pipeline_refuses_is_a_conflict_and_changes_nothing(server: ControlServer, toy: Toy) -> None:
    ask(server, "POST", "/scale", {"nodes": 4})
    toy.tick()
    before = toy.history()
    status, answer = ask(server, "POST", "/scale", {"nodes": 3})
    assert (status, answer["error"]) == (409, "rescale 1 is under way; ask again when it has settled")
    assert answer["story"] == ["rescale 1 was asked for", "it switched to its route"]
    assert toy.history() == before


def test_a_savepoint_and_a_second_one_at_the_same_place(server: ControlServer, toy: Toy) -> None:
    assert ask(server, "POST", "/savepoint", {"place": "saved"}) == (200, {"place": "saved"})
    assert refusal(server, "POST", "/savepoint", {"place": "saved"})[0] == 409
    assert toy.saved == ["saved"]


def test_stop_is_passed_on(server: ControlServer, toy: Toy) -> None:
    assert ask(server, "POST", "/stop") == (202, {"stopping": True})
    assert toy.stopped.is_set()


def test_of_asks_at_the_same_time_each_gets_its_own_answer(server: ControlServer, toy: Toy) -> None:
    """While batches go by: those that were taken are in the history, once each; the others say why not."""
    start = threading.Barrier(8)

    def one(number: int) -> tuple[int, Any]:
        start.wait()
        return ask(server, "POST", "/scale", {"nodes": 3 + number})

    with ticking(toy, 0.001), ThreadPoolExecutor(8) as many:
        answers = list(many.map(one, range(8)))
    taken = {answer["number"]: answer["nodes"][1] for status, answer in answers if status == 202}
    assert taken == {each.number: each.nodes[1] for each in toy.history()}
    assert taken
    refused = [answer["error"] for status, answer in answers if status == 409]
    assert len(taken) + len(refused) == 8
    assert all("is under way" in text for text in refused)


def test_one_more_node_many_times_at_once_loses_none(server: ControlServer, toy: Toy) -> None:
    with ThreadPoolExecutor(6) as many:
        answers = list(many.map(lambda _: ask(server, "GET", "/scale?stage=1"), range(6)))
    assert sorted(answer["nodes"][1] for _, answer in answers) == [3, 4, 5, 6, 7, 8]


def test_what_breaks_in_the_pipeline_is_in_its_log_and_not_in_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken(Toy):
        def stop(self) -> None:
            raise OSError("secret of the house")

    with ControlServer(Broken(), checkpoint=tmp_path) as server, caplog.at_level(logging.ERROR):
        assert refusal(server, "POST", "/stop") == (500, "this failed in the pipeline; its log says why")
        assert ask(server, "GET", "/status")[0] == 200
    (record,) = caplog.records
    assert record.name == "tidegate.control.api"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OSError)
    assert capfd.readouterr().err == ""


def test_the_bodies_have_the_fields_of_an_ask() -> None:
    names = {item.name for item in fields(Ask)}
    assert set(PlanBody.model_fields) == names
    assert set(ScaleBody.model_fields) == names - {"kind", "bytes"}
    assert set(RebalanceBody.model_fields) == names - {"kind", "nodes", "parallelism"}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_large_body_is_refused_before_it_is_read(
    calm: tuple[ControlServer, Toy], known: bool, chunked: bool
) -> None:
    server, _ = calm
    parts = urlsplit(server.url)
    head = ["POST /savepoint HTTP/1.1", "Host: x", "Content-Type: application/json"]
    head += [f"Authorization: Bearer {server.token}"] if known else []
    head += ["Transfer-Encoding: chunked"] if chunked else [f"Content-Length: {10 << 30}"]
    with socket.create_connection((parts.hostname or "", parts.port or 0), 30) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        # Nothing of the body was sent, and there is an answer already.
        answer = connection.recv(65536)
    assert answer.split()[1] == (b"413" if known else b"401")
