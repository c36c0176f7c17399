"""Keys of all types, rows with them, and runs of such rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.operators.arranging import Batch, colliding, given_input, spread
from tests.operators.playing import Run, cut
from tidegate.operators.operator import Input

KEYS: dict[str, tuple[str, Sequence[Any]]] = {
    "int": ("bigint", [1, 2, 3, None]),
    "string": ("string", ["a", "b", "", None]),
    "binary": ("binary", [b"", b"\x00", b"\x00\x00", None]),
    "double": ("double", [0.0, 1.5, math.nan, None]),
}
"""Types of keys, and keys."""

keyed = st.sampled_from(
    [("int",), ("string",), ("binary",), ("double",), ("int", "string"), ("string", "binary")]
)
hashes = st.sampled_from([spread, colliding])


def input_of(kinds: Sequence[str], event_time: str | None = "t") -> Input:
    """The input that rows with keys of these types come from."""
    names = [f"k{number}" for number in range(len(kinds))]
    columns = [f"{name} {KEYS[kind][0]}" for name, kind in zip(names, kinds, strict=True)]
    return given_input(", ".join([*columns, "t timestamp", "v bigint"]), names, event_time)


def rows_of(
    kinds: Sequence[str], *, most: int = 25, latest: int = 60, sides: int = 2
) -> st.SearchStrategy[Batch]:
    """Rows with columns k0.., t (microseconds) and v; values may be null."""
    row = st.fixed_dictionaries(
        {f"k{number}": st.sampled_from(KEYS[kind][1]) for number, kind in enumerate(kinds)}
        | {"t": st.integers(0, latest), "v": st.none() | st.integers(0, 3)}
    )
    return st.lists(st.tuples(st.integers(0, sides - 1), row), max_size=most)


@st.composite
def runs(
    draw: st.DrawFn,
    kinds: Sequence[str],
    *,
    grace: int = 30,
    latest: int = 60,
    sides: int = 2,
    on_time: bool = False,
    ended: bool = True,
) -> Run:
    """Rows with keys of these types in batches; when not `ended`, the last one does not complete time."""
    rows = draw(rows_of(kinds, latest=latest, sides=sides))
    cuts = draw(st.lists(st.integers(0, 50), max_size=5))
    run = cut(rows, cuts, draw(st.integers(0, grace)), sides=sides, on_time=on_time)
    return run if ended else Run(run.batches[:-1], run.times[:-1])
