"""Errors and rows as Arrow Flight carries them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

from tidegate.errors import CheckpointError, FencedError, NodeError, StaleError, StateError, TidegateError
from tidegate.state.wire.access import SOCKET

_CHUNK = 4 << 20
"""Bytes of rows in one message, about. A receiver counts message by message."""
_KINDS: dict[str, type[TidegateError]] = {
    "fenced": FencedError,
    "stale": StaleError,
    "checkpoint": CheckpointError,
    "state": StateError,
}


def to_flight(error: TidegateError) -> flight.FlightError:
    """An error as a node sends it. The text is cut: it travels in a header."""
    kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), "state")
    message = str(error)[:1500]
    return flight.FlightServerError(message, json.dumps({"kind": kind, "message": message}).encode())


UNANSWERED = "does not answer"
"""In every error that means it."""


def from_flight(error: Exception, node: str) -> TidegateError:
    """What a node meant, or a NodeError when it did not get to say anything."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return StateError(
            f"state node {node} refuses the token; all parts of a pipeline must use the same token"
        )
    try:
        form = json.loads(getattr(error, "extra_info", b""))
        return _KINDS[form["kind"]](form["message"])
    except (ValueError, KeyError, TypeError):
        return NodeError(f"state node {node} {UNANSWERED}{_problem(error, node)}", node=node)


def _problem(error: Exception, node: str) -> str:
    if isinstance(error, flight.FlightTimedOutError):
        return " in time"
    if node.startswith(SOCKET) and not Path(node.removeprefix(SOCKET)).exists():
        return ": it has ended, or is on another machine; for tasks on several machines set state.bind"
    return f": {str(error)[:300]}"


def batches(rows: pa.Table) -> list[pa.RecordBatch]:
    """Rows cut into messages."""
    if rows.get_total_buffer_size() <= _CHUNK:  # Quicker to be had than `nbytes`, and rarely less.
        return rows.to_batches()  # type: ignore[no-any-return]
    each = max(1, _CHUNK * rows.num_rows // max(1, rows.nbytes))
    found: list[pa.RecordBatch] = rows.to_batches(max_chunksize=each)
    return found
