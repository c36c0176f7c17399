"""Dataclasses as JSON: everything comes back, and nothing else gets in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tidegate.state.codec import Count, FormError, decoded, encoded


@dataclass(frozen=True)
class Inner:
    groups: frozenset[int]
    at: int | None = None

    def check(self) -> None:
        if self.at == 13:
            raise FormError("13 is not taken")


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    size: Count
    parts: tuple[Inner, ...] = ()
    rows: Mapping[int, int] = field(default_factory=dict)


WHOLE = Outer("a", 5, (Inner(frozenset({1, 2, 9}), 3), Inner(frozenset())), {3: 4})


def test_what_was_encoded_comes_back() -> None:
    assert decoded(Outer, json.loads(json.dumps(encoded(WHOLE)))) == WHOLE


def test_fields_with_a_default_may_be_left_out() -> None:
    assert decoded(Outer, {"kind": "b", "size": 0}) == Outer("b", 0)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"kind": "c"},
        {"kind": None},
        {"size": -1},
        {"size": True},
        {"size": 1.0},
        {"size": 2**63},
        {"parts": {}},
        {"parts": [{}]},
        {"parts": [{"groups": "2-1"}]},
        {"parts": [{"groups": "1", "at": 13}]},
        {"rows": {"x": 1}},
        {"rows": []},
    ],
    ids=repr,
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FormError):
        decoded(Outer, encoded(WHOLE) | change)


@pytest.mark.parametrize("form", [None, [], 1, "x", {}, {"kind": "a"}], ids=repr)
def test_what_lacks_a_field_is_refused(form: object) -> None:
    with pytest.raises(FormError):
        decoded(Outer, form)
