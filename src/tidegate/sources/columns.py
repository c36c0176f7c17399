"""Columns as far as they are known without Spark: names, and the types that were declared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Columns: TypeAlias = Mapping[str, str]
"""Name -> the first word of its type in Spark's DDL, in small letters; empty where the type is not known."""

_WHOLE = frozenset(("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"))
NUMBERS = _WHOLE | frozenset(("float", "real", "double", "dec", "decimal", "numeric"))
TIMES = frozenset(("timestamp", "timestamp_ltz"))
OTHERS = frozenset(("boolean", "string", "char", "varchar", "binary", "date", "timestamp_ntz", "interval"))
NESTED = frozenset(("array", "map", "struct", "variant"))

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*(?::\s*|\s)\s*([a-z]\w*).*", re.IGNORECASE | re.DOTALL)


def declared(schema: str | pa.Schema) -> Columns | None:
    """The columns of a schema as Spark's DDL or as Arrow has it; None when that is not sure.

    >>> declared("id bigint, `a b` array<int> not null, at: timestamp comment 'x, y', n decimal(10, 2)")
    {'id': 'bigint', 'a b': 'array', 'at': 'timestamp', 'n': 'decimal'}
    >>> declared("bigint") is None
    True
    """
    if not isinstance(schema, str):
        return dict.fromkeys(schema.names, "")
    found: dict[str, str] = {}
    for part in _parts(schema):
        match = _COLUMN.fullmatch(part)
        if match is None:
            return None
        found[match[1].replace("``", "`") if match[1] else match[2]] = match[3].lower()
    return found


def has(columns: Columns, name: str) -> bool:
    """Whether there is such a column. Spark looks at names, but not at their capitals."""
    return name.lower() in map(str.lower, columns)


def type_of(columns: Columns, name: str) -> str:
    """The type of a column; empty when that is not known."""
    return next((kind for each, kind in columns.items() if each.lower() == name.lower()), "")


def missing(columns: Iterable[str], name: str) -> str:
    """That there is no such column, and which one may be meant.

    >>> missing({"id": "bigint", "value": "double"}, "valu")
    "there is no column 'valu' among id, value; did you mean 'value'?"
    """
    names = {each.lower(): each for each in columns}
    alike = get_close_matches(name.lower(), names, n=1)
    meant = f"; did you mean {names[alike[0]]!r}?" if alike else ""
    return f"there is no column {name!r} among {', '.join(names.values())}{meant}"


def _parts(ddl: str) -> list[str]:
    """A schema cut at the commas that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in ddl:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'\"":
            quote = sign
        else:
            depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts
