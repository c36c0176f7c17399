"""Dataclasses as JSON values, and strictly back. A field's type tells what it may be.

An unknown field, a missing one, a wrong type or a number out of range is an error, so that nothing half
understood gets any further, and a short text never stands for much work.

    int                 of 64 bits with its sign, or as `Between` tells
    str                 of 1 to 1000 characters, or as `Like` tells
    frozenset[int]      key groups, as text: '1-3,7'
    pa.Schema           base64 of its IPC form
    Mapping             a JSON object; its keys are text there
    tuple[T, ...]       a JSON array
    another dataclass   a JSON object; its method `check`, if it has one, looks at the whole

Fields with a default may be left out. `Any` is taken as it is.
"""

from __future__ import annotations

import base64
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import pyarrow as pa

from tidegate.errors import StateError
from tidegate.state.table.keys import parse_groups, show_groups

MAX_GROUPS = 1 << 16
_SCHEMAS = 1024
"""So many are kept: those of a pipeline come again with every batch."""
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_NUMBER = re.compile(r"-?[0-9]{1,19}")

T = TypeVar("T")


class FormError(StateError, ValueError):
    """JSON that is not what it should be. Operator action: see that all parts are of the same version."""


@dataclass(frozen=True, slots=True)
class Between:
    """The range of an int, both ends included."""

    low: int = 0
    high: int = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Like:
    """What a text must match, in full, and an example."""

    pattern: re.Pattern[str]
    example: str


Count: TypeAlias = Annotated[int, Between()]
BatchId: TypeAlias = Annotated[int, Between(-1)]
"""-1: before the first batch."""


_Decode: TypeAlias = Callable[[Any, str], Any]
"""From a form, and what it is called in an error."""


def encoded(value: Any) -> Any:
    """A dataclass as JSON values."""
    kind: Any = type(value)
    return _encoder(kind)(value)


def decoded(kind: type[T], form: object) -> T:
    """What `encoded` was given. FormError when it is none of this kind."""
    key: Any = kind
    value: T = _decoder(key)(form, kind.__name__)
    return value


@lru_cache(_SCHEMAS)
def schema_text(schema: pa.Schema) -> str:
    """A schema without its metadata, as text."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


@lru_cache(_SCHEMAS)
def schema_of(text: str) -> pa.Schema:
    """What `schema_text` was given."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


@cache
def _encoder(kind: type) -> Callable[[Any], Any]:
    if is_dataclass(kind):
        names = [each.name for each in fields(kind)]
        return lambda value: {name: encoded(getattr(value, name)) for name in names}
    if issubclass(kind, Mapping):
        return lambda value: {str(name): encoded(each) for name, each in value.items()}
    if issubclass(kind, tuple):
        return lambda value: [encoded(each) for each in value]
    if issubclass(kind, frozenset):
        return show_groups
    return schema_text if issubclass(kind, pa.Schema) else lambda value: value


@cache
def _decoder(kind: Any) -> _Decode:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _limited(parts[1])
    if origin in (typing.Union, types.UnionType):
        inner = _decoder(next(part for part in parts if part is not type(None)))
        return lambda form, what: None if form is None else inner(form, what)
    if origin is Literal:
        return _plain(lambda form: type(form) is str and form in parts, f"one of {', '.join(parts)}")
    if origin is tuple:
        item = _decoder(parts[0])
        return lambda form, what: tuple([item(each, what) for each in _array(form, what)])
    if origin is frozenset:
        return _groups
    if origin is Mapping:
        return _mapping(_number_key if parts[0] is int else _decoder(parts[0]), _decoder(parts[1]))
    if is_dataclass(kind):
        return _record(typing.cast(type, kind))
    return _PLAIN[kind]


def _record(kind: type) -> _Decode:
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {each.name: _decoder(hints[each.name]) for each in fields(kind)}
    whats = {name: f"{kind.__name__}: {name!r}" for name in known}
    required = {
        each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING
    }
    check: Callable[[Any], None] | None = getattr(kind, "check", None)

    def decode(form: Any, what: str) -> Any:
        given = _object(form, what)
        if not required <= given.keys() <= known.keys():
            missing, strange = sorted(required - given.keys()), sorted(given.keys() - known.keys())
            raise FormError(f"{what}: fields are missing {missing} or not known {strange}"[:300])
        value = kind(**{name: known[name](item, whats[name]) for name, item in given.items()})
        if check is not None:
            check(value)
        return value

    return decode


def _mapping(key: _Decode, item: _Decode) -> _Decode:
    return lambda form, what: {
        key(name, what): item(each, what) for name, each in _object(form, what).items()
    }


def _plain(fits: Callable[[Any], object], wanted: str) -> _Decode:
    """Of values that are their own form."""

    def decode(form: Any, what: str) -> Any:
        if not fits(form):
            given = repr(form[:100]) if type(form) is str else f"a {type(form).__name__}"
            raise FormError(f"{what} must be {wanted}, and is {given}")
        return form

    return decode


def _limited(limit: Between | Like) -> _Decode:
    match limit:
        case Between(low, high):  # Strictly: a bool is an int as well.
            wanted = f"a whole number from {low} to {high}"
            return _plain(lambda form: type(form) is int and low <= form <= high, wanted)
        case Like(pattern, example):
            return _plain(lambda form: type(form) is str and pattern.fullmatch(form), f"like {example!r}")


_object = _plain(lambda form: type(form) is dict, "a JSON object")
_array = _plain(lambda form: type(form) is list, "a JSON array")
_string = _plain(lambda form: type(form) is str, "a text")
_PLAIN: dict[Any, _Decode] = {
    Any: _plain(lambda form: True, ""),
    bool: _plain(lambda form: type(form) is bool, "true or false"),
    int: _limited(Between(-(2**63))),
    float: _plain(lambda form: type(form) in (int, float), "a number"),
    str: _plain(lambda form: type(form) is str and 0 < len(form) <= 1000, "a text of 1 to 1000 characters"),
    pa.Schema: lambda form, what: _schema(form, what),
}


def _number_key(text: str, what: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise FormError(f"{what}: {text[:100]!r} is not a number")
    return int(text)


def _groups(form: Any, what: str) -> frozenset[int]:
    """Ascending and bounded: that is checked before any group is made."""
    text, before = _string(form, what), -1
    for part in text.split(",") if text else ():
        found = _RANGE.fullmatch(part)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (-1, -1)
        if not before < low <= high < MAX_GROUPS:
            raise FormError(f"{what} must be ascending key groups below {MAX_GROUPS}, like '1-3,7'")
        before = high
    return parse_groups(text)


def _schema(form: Any, what: str) -> pa.Schema:
    try:
        return schema_of(_string(form, what))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise FormError(f"{what} is not a schema") from error
