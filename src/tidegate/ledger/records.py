"""The records of the ledger, and their form on disk, which only this module knows: one JSON object each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import CheckpointError
from tidegate.ledger.seal import opened, sealed
from tidegate.rescale.route import Route
from tidegate.state.log.manifest import StateManifest


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a source that a batch covers. Offsets are parsed JSON; None where there is none yet."""

    start: Any
    end: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed batch. Event times and watermarks are in microseconds."""

    batch_id: int
    generation: int
    cut: Mapping[str, Cut]
    """Source -> what the batch covers of it."""
    event_times: Mapping[str, int]
    """Source -> largest event time seen up to and with this batch."""
    receipts: Mapping[str, dict[str, Any]]
    """Sink -> what it needs to publish the batch. What is in a receipt is the sink's own affair."""
    limit: int | None = None
    """Rows that a batch was allowed when this one was committed."""
    watermark: int | None = None
    """The watermark that held in this batch."""
    state: StateManifest | None = None
    """What the state consists of after this batch; None without state, or when it is not durable."""
    meaning: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Step -> what its state stands for."""
    durable: bool = True
    """Whether the state outlives its nodes. Without it the pipeline cannot be resumed from here."""
    route: Route | None = None
    """Who owned and worked on which key groups."""
    configured: tuple[int, int] | None = None
    """State nodes and parallelism that the configuration asked for."""
    furthest: int | None = None
    """The latest moment for which a window or timer has waited up to and with this batch."""
    planned_at: int | None = None
    """When Spark planned the batch, in milliseconds since 1970."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Source -> seconds of silence up to and with this batch."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A driver has taken over."""

    number: int
    driver: str = ""
    """Which one of those that may have wanted this number."""


def encode(record: Entry | Generation) -> bytes:
    if isinstance(record, Generation):
        return sealed({"generation": record.number, **({"driver": record.driver} if record.driver else {})})
    form: dict[str, Any] = {
        "batch_id": record.batch_id,
        "generation": record.generation,
        "cut": {name: {"start": cut.start, "end": cut.end} for name, cut in record.cut.items()},
        "event_times": dict(record.event_times),
        "receipts": dict(record.receipts),
        "limit": record.limit,
        "watermark": record.watermark,
        "furthest": record.furthest,
        "planned_at": record.planned_at,
        "silent": dict(record.silent),
        "state": None if record.durable else {"durable": False},
        "route": None,
    }
    if record.durable and record.state is not None:
        form["state"] = {**record.state.to_json(), "meaning": record.meaning}
    if record.route is not None:
        configured = {"configured": record.configured} if record.configured else {}
        form["route"] = {**record.route.to_json(), **configured}
    return sealed(form)


def decode(content: bytes) -> Entry | Generation:
    """The way back. Raises ValueError for a damaged record."""
    try:
        form = opened(content)
        return _entry(form) if "batch_id" in form else _generation(**form)
    except (CheckpointError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def is_entry(content: bytes) -> bool:
    """Whether a record is a committed batch; cheaper than to decode it."""
    form = json.loads(content)
    return isinstance(form, dict) and "batch_id" in form


def _generation(*, generation: int, driver: str = "") -> Generation:
    return Generation(generation, driver)


def _entry(form: dict[str, Any]) -> Entry:
    cut = {name: Cut(part["start"], part["end"]) for name, part in form.pop("cut").items()}
    state, route = form.pop("state", None) or {}, form.pop("route", None) or {}
    configured = route.get("configured")
    return Entry(
        **form,
        cut=cut,
        state=StateManifest.from_json(state) if state.get("durable", True) and state else None,
        meaning=state.get("meaning", {}),
        durable=state.get("durable", True),
        route=Route.from_json(route) if route else None,
        configured=(configured[0], configured[1]) if configured else None,
    )
