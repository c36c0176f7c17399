"""A running pipeline seen and steered from another process."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from tidegate.control.controls import Status
from tidegate.control.server import FILE, Contact
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask, PlanView, Rescale

T = TypeVar("T")

_TIMEOUT = 30.0


class ControlClient:
    """The `Controls` of a pipeline in another process. Raises ControlError, also when nobody answers."""

    def __init__(
        self, url: str, token: str, *, pipeline: str = "the pipeline", timeout: float = _TIMEOUT
    ) -> None:
        self.url = url
        self.pipeline = pipeline
        self._token = token
        self._timeout = timeout

    @classmethod
    def find(cls, checkpoint: Path) -> ControlClient:
        """The client of the pipeline that runs on this checkpoint, which has answered once."""
        file = checkpoint / FILE
        told = _read(file)
        found = cls(told.url, told.token, pipeline=told.pipeline)
        # On this machine the process is ours to see. Its port may have gone to somebody else since.
        if _is_local(told.url) and not _alive(told.pid):
            raise ControlError(
                f"{found.pipeline} no longer runs on {checkpoint}: process {told.pid} has exited and "
                f"left {file} behind; the next `tidegate run` replaces it"
            )
        found.status()
        return found

    def status(self) -> Status:
        return self._get(Status, "GET", "/status")

    def plan(self, ask: Ask) -> PlanView:
        return self._get(PlanView, "POST", "/plan", _given(ask))

    def apply(self, ask: Ask) -> Rescale:
        """Set a scale or a rebalance going; `rescale` of its number follows it."""
        body = _given(ask)
        return self._get(Rescale, "POST", f"/{body.pop('kind')}", body)

    def savepoint(self, place: str) -> str:
        """Copy the state after the latest committed batch, however long it takes; where it is."""
        answer = self._call("POST", "/savepoint", {"place": place}, patient=True)
        return str(json.loads(answer)["place"])

    def stop(self) -> None:
        self._call("POST", "/stop")

    def history(self) -> tuple[Rescale, ...]:
        return self._get(tuple[Rescale, ...], "GET", "/history")

    def rescale(self, number: int) -> Rescale:
        """One rescale of this run."""
        return self._get(Rescale, "GET", f"/history/{number}")

    def answers(self) -> bool:
        """Whether the pipeline is there."""
        try:
            self.status()
        except ControlError:
            return False
        return True

    def _get(self, kind: type[T], method: str, path: str, body: object = None) -> T:
        from pydantic import TypeAdapter, ValidationError

        answer = self._call(method, path, body)
        try:
            return TypeAdapter(kind).validate_json(answer)
        except ValidationError as error:
            raise ControlError(
                f"{method} {self.url}{path} answers with what this version of Tidegate cannot read; use the "
                f"version that runs {self.pipeline}"
            ) from error

    def _call(self, method: str, path: str, body: object = None, *, patient: bool = False) -> bytes:
        parts = urlsplit(self.url)
        limit = None if patient else self._timeout
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, body=content, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._gone(error)
        finally:
            connection.close()
        if answer.status == 401:
            raise ControlError(
                f"{self.pipeline} rejects the token of its checkpoint: another process answers at {self.url} "
                "now; start the pipeline again, or wait until it has started"
            )
        if not 200 <= answer.status < 300:
            raise _refusal(text) or ControlError(f"{method} {self.url}{path} answers {answer.status}")
        return text

    def _gone(self, error: Exception) -> NoReturn:
        if isinstance(error, TimeoutError):
            why = f"within {self._timeout:g} s"
        else:
            why = f"({getattr(error, 'strerror', None) or error or type(error).__name__})"
        raise ControlError(
            f"{self.pipeline} does not answer at {self.url} {why}; it is starting, stopping or gone"
        ) from error


def _given(ask: Ask) -> dict[str, Any]:
    return {name: value for name, value in asdict(ask).items() if value is not None}


def _read(file: Path) -> Contact:
    from pydantic import TypeAdapter

    try:
        told = TypeAdapter(Contact).validate_json(file.read_bytes())
        _ = urlsplit(told.url).port  # raises ValueError for what is no port
        return told
    except FileNotFoundError:
        if not file.parent.is_dir():
            raise ControlError(f"there is no checkpoint {file.parent}") from None
        raise ControlError(
            f"no pipeline with a control API runs on {file.parent}: it holds no {file.name}"
        ) from None
    except PermissionError:
        raise ControlError(f"{file} can only be read by the user who runs the pipeline") from None
    except OSError as error:
        raise ControlError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise ControlError(f"{file} is damaged; stop the pipeline with Ctrl-C and start it again") from error


def _refusal(text: bytes) -> ControlError | None:
    try:
        told = json.loads(text)
        return ControlError(str(told["error"]), story=[str(line) for line in told.get("story", ())])
    except (ValueError, KeyError, TypeError):
        return None


def _is_local(url: str) -> bool:
    try:
        return ipaddress.ip_address(urlsplit(url).hostname or "").is_loopback
    except ValueError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
