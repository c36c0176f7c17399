"""A running pipeline seen and steered from another process."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from tidegate.control.contact import FILE, Contact
from tidegate.control.controls import Status
from tidegate.errors import ControlError, TidegateError
from tidegate.ledger.presence import driver_at
from tidegate.rescale.model import Ask, PlanView, Rescale
from tidegate.security.contexts import trusting
from tidegate.storage.place import local_folder, open_storage, working_folder

T = TypeVar("T")

_TIMEOUT = 30.0


class ControlClient:
    """The `Controls` of a pipeline in another process. Raises ControlError, also when nobody answers."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        pipeline: str = "the pipeline",
        authority: str | None = None,
        name: str | None = None,
        timeout: float = _TIMEOUT,
    ) -> None:
        """`authority` is the certificate, in PEM, that https:// needs; None takes those that this machine
        trusts. `name` is in the certificate of the pipeline; None goes by the address."""
        self.url = url
        self.pipeline = pipeline
        self._token = token
        self._authority = authority
        self._name = name
        self._timeout = timeout

    @classmethod
    def find(cls, checkpoint: str | Path) -> ControlClient:
        """The client of the pipeline that runs on this checkpoint, which has answered once.

        The token is in the driver's folder, on its machine.
        """
        file = working_folder(checkpoint) / FILE
        try:
            told = _read(file, checkpoint)
        except ControlError as error:
            raise _elsewhere(checkpoint) or error from None
        found = cls(told.url, told.token, pipeline=told.pipeline, authority=told.authority, name=told.name)
        # On this machine the process is ours to see. Its port may have gone to somebody else since.
        if _is_local(told.url) and not _alive(told.pid):
            raise ControlError(
                f"{found.pipeline} no longer runs on {checkpoint}: process {told.pid} has exited and "
                f"left {file} behind; the next `tidegate run` replaces it"
            )
        found.status()
        return found

    @classmethod
    def at(cls, url: str, *, token: str, authority: str | None = None) -> ControlClient:
        """The client of the pipeline whose control API is there, which has answered once. Other names than
        that of the address are not taken for it."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
            raise ControlError(f"{url} is not the URL of a control API; write it like https://10.0.0.5:8443")
        found = cls(url.rstrip("/"), token, authority=authority)
        found.pipeline = found.status().pipeline
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
        """One rescale of this pipeline."""
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
        connection = self._connection(None if patient else self._timeout)
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

    def _connection(self, limit: float | None) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=limit)
        try:
            context = trusting(self._authority)
        except ssl.SSLError as error:
            raise ControlError("the authority of the pipeline is no certificate in PEM") from error
        return _HTTPS(host, port, timeout=limit, context=context, name=self._name or host)

    def _gone(self, error: Exception) -> NoReturn:
        if isinstance(error, ssl.SSLCertVerificationError):
            raise ControlError(
                f"what answers at {self.url} does not prove that it is {self.pipeline}: "
                f"{error.verify_message}"
            ) from error
        if isinstance(error, TimeoutError):
            why = f"within {self._timeout:g} s"
        else:
            why = f"({getattr(error, 'strerror', None) or error or type(error).__name__})"
        raise ControlError(
            f"{self.pipeline} does not answer at {self.url} {why}; it is starting, stopping or gone"
        ) from error


class _HTTPS(http.client.HTTPSConnection):
    """A connection to a server with a certificate for this name, whatever its address."""

    def __init__(self, *place: Any, context: ssl.SSLContext, name: str, **how: Any) -> None:
        super().__init__(*place, **how)
        self._trusting = context
        self._name = name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusting.wrap_socket(self.sock, server_hostname=self._name)


def _given(ask: Ask) -> dict[str, Any]:
    return {name: value for name, value in asdict(ask).items() if value is not None}


def _elsewhere(checkpoint: str | Path) -> ControlError | None:
    """What a driver on another machine has told of itself in the store."""
    if local_folder(checkpoint) is not None:
        return None
    try:
        driver = driver_at(open_storage(checkpoint))
    except TidegateError as error:
        return ControlError(f"there is no telling who runs on {checkpoint}: {error}")
    if driver is None or driver.ended:
        return None
    where = f"; its control API is at {driver.control}" if driver.control else ""
    return ControlError(
        f"the driver of {checkpoint} runs on {driver.host}, as process {driver.pid}{where}. Give the command "
        "there, as the user who runs it, or with that URL, --token-file and --authority"
    )


def _read(file: Path, checkpoint: str | Path) -> Contact:
    from pydantic import TypeAdapter

    try:
        told = TypeAdapter(Contact).validate_json(file.read_bytes())
        _ = urlsplit(told.url).port  # raises ValueError for what is no port
        return told
    except FileNotFoundError:
        if local_folder(checkpoint) is not None and not file.parent.is_dir():
            raise ControlError(f"there is no checkpoint {checkpoint}") from None
        raise ControlError(
            f"no pipeline with a control API runs on {checkpoint}: there is no {file}"
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
