"""A folder of generated files, each of which appears whole."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tidegate.errors import PipelineError
from tidegate.sources._words import below, fractions, words

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 16
_SPOILED, _HOW = 101, 102

Progress = Callable[["Totals"], None]
"""Called now and then with all that has been written so far."""

Lines = Callable[[int, int], "pa.StringArray"]
"""The lines of the rows from the first number up to but not including the second, each with its line end.
A pure function: the same numbers always give the same lines."""

Add = Callable[[int, int, float], int]
"""Adds rows to a file, from the first number on and as many as the second, and stops at the one that fills as
many bytes as the third. Returns how many were added."""


@dataclass(frozen=True, slots=True)
class Volume:
    """How much to write: `rows`, or about `size` bytes; spread evenly over `files` files."""

    rows: int | None = None
    size: int | None = None
    files: int = 1

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.size is None):
            raise PipelineError("give either rows or size", step="generate")
        for name, number in (("rows", self.rows), ("size", self.size), ("files", self.files)):
            if number is not None and number < 1:
                raise PipelineError(f"{name} must be at least 1, not {number}", step="generate")
        if self.files > (self.rows or self.size or 0):
            raise PipelineError(f"not enough data for {self.files} files", step="generate")

    def shares(self) -> list[Volume]:
        total = self.rows or self.size or 0
        parts = [b - a for a, b in pairwise(total * i // self.files for i in range(self.files + 1))]
        return [Volume(size=part) if self.rows is None else Volume(rows=part) for part in parts]


@dataclass(slots=True)
class Totals:
    """What has been written: rows, bytes and files, and the name of the first file."""

    rows: int = 0
    size: int = 0
    files: int = 0
    first: str = ""


def write_lines(
    out: str | Path,
    lines: Lines,
    volume: Volume,
    *,
    seed: int = 0,
    malformed: float = 0.0,
    suffix: str = ".json",
    header: str = "",
    progress: Progress | None = None,
) -> Totals:
    """Write files of text lines. About `malformed` of them, from 0 to 1, are truncated, mistyped or garbage.

    The same arguments give the same bytes.
    """
    if malformed:
        lines = partial(_spoiled, lines, malformed, seed)
    return write_parts(out, suffix, volume, partial(_text_file, lines, header), progress)


def write_parts(
    out: str | Path,
    suffix: str,
    volume: Volume,
    part: Callable[[IO[bytes]], AbstractContextManager[Add]],
    progress: Progress | None = None,
) -> Totals:
    """Write rows from 0 on to `part-00000<suffix>` and so on in the folder `out`.

    If the folder has parts already, of any suffix, numbering continues after the highest: a stream that has
    read a file does not look at that name again. It sees no file before it is complete.
    """
    folder, written = Path(out), Totals()
    folder.mkdir(parents=True, exist_ok=True)
    for number, share in enumerate(volume.shares(), start=_next_number(folder)):
        name = f"part-{number:05}{suffix}"
        written.first = written.first or name
        hidden = folder / f".{name}.writing"
        try:
            before = written.size
            with hidden.open("wb") as file:
                with part(file) as add:
                    _fill(file, add, share, written, progress)
                written.size = before + file.tell()  # with what ending the part adds
            hidden.replace(folder / name)
        finally:
            hidden.unlink(missing_ok=True)
        written.files += 1
    return written


def _next_number(folder: Path) -> int:
    names = (re.match(r"part-(\d+)", path.name) for path in folder.iterdir())
    return max((int(name[1]) + 1 for name in names if name), default=0)


def _fill(file: IO[bytes], add: Add, share: Volume, written: Totals, progress: Progress | None) -> None:
    left, size = share.rows or math.inf, share.size or math.inf
    while left > 0:
        before = file.tell()
        added = add(written.rows, int(min(_CHUNK, left)), size - before)
        left -= added
        written.rows += added
        written.size += file.tell() - before
        if progress is not None:
            progress(written)
        if file.tell() >= size:
            return


@contextmanager
def _text_file(lines: Lines, header: str, file: IO[bytes]) -> Iterator[Add]:
    import numpy as np

    def add(first: int, rows: int, room: float) -> int:
        found = lines(first, first + rows)
        _, offsets, text = found.buffers()
        # The lines are contiguous in Arrow's memory, just as they are in the file.
        ends = np.frombuffer(offsets, dtype=np.int32)[found.offset : found.offset + rows + 1]
        count = min(rows, int(np.searchsorted(ends[1:] - ends[0], room)) + 1)
        file.write(memoryview(text)[ends[0] : ends[count]])
        return count

    file.write(header.encode())
    yield add


def _spoiled(lines: Lines, share: float, seed: int, first: int, last: int) -> pa.StringArray:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    good, offsets = lines(first, last), np.arange(first, last)
    hit = pa.array(fractions(words(seed, _SPOILED, offsets)) < share)
    short = pc.binary_join_element_wise(pc.utf8_slice_codeunits(good, 0, 12), "\n", "")
    bad = pc.choose(
        pa.array(below(words(seed, _HOW, offsets), 3)),
        short,
        '{"id": "seven", "timestamp": "yesterday"}\n',
        "--- connection reset ---\n",
    )
    return pc.if_else(hit, bad, good)
