"""Merging small data files: which ones, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

from tidegate.sinks.data import parquet_form

if TYPE_CHECKING:
    import pyarrow as pa

Content: TypeAlias = "tuple[str, pa.Buffer]"
"""A file, by its name, and what it holds."""


def runs(sizes: Iterable[tuple[str, int]], target: int) -> Iterator[list[str]]:
    """Neighbours to merge into one file each of about `target` bytes, from names and sizes in their order.

    A file of at least half of that stays as it is.

    >>> list(runs([("a", 1), ("b", 2), ("c", 9), ("d", 1), ("e", 4), ("f", 4), ("g", 3), ("h", 1)], 8))
    [['a', 'b'], ['d'], ['g', 'h']]
    """
    run: list[str] = []
    total = 0
    for name, size in sizes:
        small = 2 * size < target
        if run and (not small or total >= target):
            yield run
            run, total = [], 0
        if small:
            run.append(name)
            total += size
    if run:
        yield run


def alike(files: Iterable[Content]) -> Iterator[list[Content]]:
    """Neighbours with the same columns and format."""
    for _, group in groupby(files, _kind):
        yield list(group)


def merged(files: Sequence[Content], *, proceed: Callable[[], None]) -> Iterator[bytes]:
    """A file with the rows of files that are alike, in their order, piece by piece.

    `proceed` is called between files, and may raise.
    """
    name, first = files[0]
    if PurePath(name).suffix == ".json":
        for _, content in files:
            proceed()
            yield content.to_pybytes()
        return
    schema = parquet_form.written_schema(first)

    def tables() -> Iterator[pa.Table]:
        for _, content in files:
            proceed()
            yield parquet_form.load([content], schema).replace_schema_metadata(schema.metadata)

    yield from parquet_form.encoded(tables(), schema)


def _kind(file: Content) -> tuple[str, object]:
    name, content = file
    suffix = PurePath(name).suffix
    if suffix == ".json":
        return suffix, None
    schema = parquet_form.written_schema(content)
    return suffix, (schema.metadata or {}).get(parquet_form.SPARK_SCHEMA) or schema.to_string()
