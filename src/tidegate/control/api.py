"""The control API: what can be asked of a running pipeline, over HTTP.

Every refusal is one JSON object `{"error": text}`: 401 without the token, 404 for what does not exist, 422
for an invalid body, 409 for what the pipeline refuses, in which case nothing has changed. A 409 may add
`story`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from threading import Lock
from typing import Annotated, Any, Literal, Self

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.control.controls import Controls, Status
from tidegate.control.page import page
from tidegate.errors import TidegateError
from tidegate.rescale.model import Ask, PlanView, Rescale, Strategy

_log = logging.getLogger(__name__)

_OPEN = frozenset({"/docs", "/openapi.json", "/health"})
_NOTHING_FROM_OUTSIDE = "default-src 'none'; style-src 'unsafe-inline'"
_LARGEST = 64 << 10
"""Bytes of the body of a request."""
_SHOWN = 40
"""Characters of a wrong value that an error repeats."""

Count = Annotated[int | None, Field(ge=1, le=65_536)]


class Body(BaseModel):
    """What the bodies have in common: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ChangeBody(Body):
    """What all changes have in common."""

    strategy: Strategy | None = None
    step: str | None = None

    def ask(self) -> Ask:
        return Ask(**self.model_dump())

    @model_validator(mode="after")
    def _is_sensible(self) -> Self:
        if (problem := self.ask().problem) is not None:
            raise ValueError(problem)
        return self


class ScaleBody(ChangeBody):
    """Another number of state nodes, another parallelism, or both. What is omitted stays as it is."""

    nodes: Count = None
    parallelism: Count = None


class RebalanceBody(ChangeBody):
    """Redistribute the key groups over the same nodes, by measured load."""

    bytes: Annotated[int | None, Field(ge=1, lt=2**63)] = None

    def ask(self) -> Ask:
        return Ask(**{"kind": "rebalance", **self.model_dump()})


class PlanBody(ScaleBody, RebalanceBody):
    """A change to preview; its fields are those of /scale or /rebalance, depending on `kind`."""

    kind: Literal["scale", "rebalance"] = "scale"


class SavepointBody(Body):
    """Where the copy goes: a URL, or a folder on the pipeline's machine, seen from where it was started."""

    place: Annotated[str, Field(min_length=1)]


class SavepointAnswer(BaseModel):
    """Where the copy is."""

    place: str


class StopAnswer(BaseModel):
    """The current batch is finished first."""

    stopping: bool = True


class Health(BaseModel):
    """The pipeline answers."""

    ok: bool = True


def app(controls: Controls, token: str, *, scale_by_get: bool = False) -> FastAPI:
    """The API around `controls`; all routes but /docs, /openapi.json and /health need `Bearer token`.
    `scale_by_get`: whether GET /scale adds a node."""
    api = FastAPI(
        title="Tidegate",
        description="Watch and control a running pipeline.",
        docs_url=None,  # Its page would load scripts from the internet.
        redoc_url=None,
    )
    api.add_middleware(TokenMiddleware, token=token)
    _explain_errors(api)
    # The middleware has checked the token already; this has the description say so.
    barred: dict[str, Any] = {"dependencies": [Depends(HTTPBearer(auto_error=False))]}
    one_more = Lock()

    def asked(body: ChangeBody) -> Ask:
        wanted = body.ask()
        steps = () if wanted.step is None else controls.status().steps
        if wanted.step is not None and wanted.step not in steps:
            raise HTTPException(400, f"step: there is no keyed step {wanted.step!r}, only {_listed(steps)}")
        return wanted

    @api.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(page(api.openapi()), headers={"Content-Security-Policy": _NOTHING_FROM_OUTSIDE})

    @api.get("/health")
    def health() -> Health:
        """Whether the pipeline answers; needs no token."""
        return Health()

    @api.get("/status", **barred)
    def status() -> Status:
        """What the pipeline is doing."""
        return controls.status()

    @api.post("/plan", **barred)
    def plan(body: PlanBody) -> PlanView:
        """What a change would do. Nothing is changed."""
        return controls.plan(asked(body))

    @api.post("/scale", status_code=202, **barred)
    def scale(body: ScaleBody) -> Rescale:
        """Start a rescale; /history/{number} follows it."""
        return controls.apply(asked(body))

    def allowed() -> None:
        if not scale_by_get:
            text = "GET /scale would change the pipeline, which a GET should not: use POST /scale, or set "
            raise HTTPException(405, f"{text}control.scale_by_get=true", headers={"Allow": "POST"})

    @api.get(
        "/scale",
        status_code=202,
        include_in_schema=scale_by_get,
        dependencies=[*barred["dependencies"], Depends(allowed)],
    )
    def add_node(
        stage: Annotated[int, Query(description="Position of a keyed step in `steps` of /status, from 1.")],
    ) -> Rescale:
        """One more state node, for the keyed step with this number."""
        with one_more:
            now = controls.status()
            if not 1 <= stage <= len(now.steps):
                stages = [f"{number} ({step})" for number, step in enumerate(now.steps, start=1)]
                raise HTTPException(404, f"stage: there is no stage {stage}, only {_listed(stages)}")
            nodes = now.rescale.nodes[1] if now.rescale and not now.rescale.over else len(now.nodes)
            return controls.apply(Ask(nodes=nodes + 1, step=now.steps[stage - 1]))

    @api.post("/rebalance", status_code=202, **barred)
    def rebalance(body: RebalanceBody) -> Rescale:
        """Redistribute the key groups over the same nodes; /history/{number} follows it."""
        return controls.apply(asked(body))

    @api.post("/savepoint", **barred)
    def savepoint(body: SavepointBody) -> SavepointAnswer:
        """Copy the state after the latest committed batch."""
        return SavepointAnswer(place=controls.savepoint(body.place))

    @api.post("/stop", status_code=202, **barred)
    def stop() -> StopAnswer:
        """Finish the current batch, then end."""
        controls.stop()
        return StopAnswer()

    @api.get("/history", **barred)
    def history() -> tuple[Rescale, ...]:
        """All rescales of this pipeline, oldest first."""
        return controls.history()

    @api.get("/history/{number}", **barred)
    def rescale(number: int) -> Rescale:
        """One rescale of this pipeline."""
        known = controls.history()
        for each in known:
            if each.number == number:
                return each
        numbers = _listed([str(each.number) for each in known])
        raise HTTPException(404, f"there is no rescale {number}; the rescales of this pipeline: {numbers}")

    return api


class TokenMiddleware:
    """Rejects requests without the token, or with a large body, before it is read, and turns any failure
    behind it into a one-line answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] not in _OPEN and not self._admits(scope):
            text = "this needs the token of control.json in the checkpoint: Authorization: Bearer TOKEN"
            refusal = _error(401, text, headers={"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        if (size := _announced(scope)) is None or size > _LARGEST:
            text = f"the body must have a length, of {_LARGEST:,} bytes at most"
            await _error(413, text)(scope, receive, send)
            return
        answered = False

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = answered or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            # Only the end of the server does that; passed on, it would be logged as an error.
            if not answered:
                await _error(503, "the pipeline has ended")(scope, receive, send)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if not answered:
                await _error(500, "this failed in the pipeline; its log says why")(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and secrets.compare_digest(given[0], self._wanted)


def _announced(scope: Scope) -> int | None:
    """The length of the body; None if it comes in pieces. The server reads no more than that."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    return int(headers.get(b"content-length", b"0"))


def _explain_errors(api: FastAPI) -> None:
    @api.exception_handler(TidegateError)
    def refused(_: Request, error: TidegateError) -> JSONResponse:
        return _error(409, str(error), story=getattr(error, "story", ()))

    @api.exception_handler(RequestValidationError)
    def nonsense(_: Request, error: RequestValidationError) -> JSONResponse:
        return _error(422, "; ".join(map(_problem, error.errors())))

    @api.exception_handler(AnyHTTPException)
    def other(request: Request, error: AnyHTTPException) -> JSONResponse:
        asked = f"{request.method} {request.url.path}"
        unknown = error.detail in ("Not Found", "Method Not Allowed")
        text = f"there is no {asked}; see /docs for the routes" if unknown else error.detail
        return _error(error.status_code, text, headers=error.headers)


def _problem(found: dict[str, Any]) -> str:
    """A problem that pydantic has found, in a line.

    >>> _problem({"type": "greater_than_equal", "loc": ("body", "nodes"), "ctx": {"ge": 1}, "input": 0,
    ...           "msg": "Input should be greater than or equal to 1"})
    'nodes: should be greater than or equal to 1, not 0'
    """
    place = ".".join(str(part) for part in found["loc"][1:] if found["type"] != "json_invalid")
    match found["type"]:
        case "extra_forbidden":
            return f"{place}: unknown field"
        case "missing" if place:
            return f"{place}: is missing"
        case "missing" | "model_attributes_type" | "model_type":
            return "the body must be a JSON object"
        case "json_invalid":
            return "the body is not JSON"
        case "value_error":
            return str(found["ctx"]["error"])
    text = found["msg"].removeprefix("Input ").removeprefix("String ").partition(", unable")[0]
    given = repr(found["input"])
    shown = given if len(given) <= _SHOWN else given[:_SHOWN] + "..."
    return f"{place or 'the body'}: {text}, not {shown}"


def _error(status: int, text: str, headers: Any = None, story: Sequence[str] = ()) -> JSONResponse:
    told = {"story": [*story]} if story else {}
    return JSONResponse({"error": " ".join(text.split()), **told}, status_code=status, headers=headers)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
