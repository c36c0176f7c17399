"""The JSON that programs get: one object per batch of a run, or one document per command."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import fields, is_dataclass
from datetime import date
from typing import Any, Self, TextIO

from tidegate.run.progress import BatchProgress
from tidegate.run.summary import Summary
from tidegate.view.output import Output
from tidegate.view.view import View


def plain(value: Any) -> Any:
    """A value as JSON values: times as ISO text, bytes as hex digits, what JSON lacks as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(name): plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return str(value)


def document(value: Any) -> str:
    """A value as one JSON document over several lines."""
    return json.dumps(plain(value), indent=2)


class JsonView(View):
    """One JSON object per batch and line, and `{"summary": {...}}` as the last one.

    Whatever else is printed during the run, by a console sink, a user's function or Java, goes to stderr.
    """

    def __init__(self, stream: TextIO) -> None:
        self._others = ExitStack()
        self._ours = stream
        self._shared = stream if stream is sys.__stdout__ else None
        if self._shared is not None:
            # Other processes write there by its number, which they inherit: ours needs one of its own.
            self._ours = os.fdopen(os.dup(self._shared.fileno()), "w", encoding=self._shared.encoding)
        self._output = Output(self._ours)

    def __enter__(self) -> Self:
        self._others.enter_context(redirect_stdout(sys.stderr))
        if self._shared is not None:
            self._shared.flush()
            os.dup2(sys.stderr.fileno(), self._shared.fileno())
            self._others.callback(os.dup2, self._ours.fileno(), self._shared.fileno())
        return self

    def __exit__(self, *failure: object) -> None:
        self._others.close()

    def __call__(self, progress: BatchProgress) -> None:
        self._write(progress.as_json())

    def summarise(self, summary: Summary) -> None:
        self._write({"summary": summary})

    def _write(self, value: Any) -> None:
        self._output.write(json.dumps(plain(value), separators=(",", ":")))
