from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType

from tidegate.view.json import document, plain


@dataclass(frozen=True, slots=True)
class Point:
    at: tuple[int, int]
    seen: datetime


def test_values_that_json_lacks_become_text() -> None:
    assert plain(datetime(2026, 1, 2, 3, 4, tzinfo=UTC)) == "2026-01-02T03:04:00+00:00"
    assert plain(date(2026, 1, 2)) == "2026-01-02"
    assert plain(b"\x00\xff") == "00ff"
    assert plain(float("nan")) == "nan"
    assert plain(Decimal("1.50")) == "1.50"


def test_values_that_json_has_stay() -> None:
    values = {"none": None, "yes": True, "count": 3, "share": 0.5, "name": "x"}
    assert plain(MappingProxyType(values)) == values


def test_a_document_goes_into_every_part() -> None:
    point = Point((1, 2), datetime(2026, 1, 2, tzinfo=UTC))
    assert json.loads(document({"points": [point]})) == {
        "points": [{"at": [1, 2], "seen": "2026-01-02T00:00:00+00:00"}]
    }
