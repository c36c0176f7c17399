"""A folder of generated files, each of which appears whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from tidegate.errors import PipelineError
from tidegate.sources._words import below, fractions, words

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 16
_SPOILED, _HOW = 101, 102

Progress = Callable[["Written"], None]
"""Called now and then with all that has been written so far."""

Lines = Callable[[int, int], "pa.StringArray"]
"""The lines of the rows from the first number up to but not including the second, each with its line end.
A pure function: the same numbers always give the same lines."""


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
        """What each file gets."""
        total = self.rows or self.size or 0
        parts = [b - a for a, b in pairwise(total * i // self.files for i in range(self.files + 1))]
        return [Volume(size=part) if self.rows is None else Volume(rows=part) for part in parts]


@dataclass(slots=True)
class Written:
    """What has been written: rows, bytes and files, and the name of the first file."""

    rows: int = 0
    size: int = 0
    files: int = 0
    first: str = ""


class PartFile(Protocol):
    """A file that is being written. `size` is its size so far, in bytes."""

    size: int

    def add(self, first: int, rows: int, room: int | None) -> int:
        """Add `rows` rows from row `first` on, and stop at the first that fills `room` bytes.

        Returns how many were added.
        """


def write_parts(
    out: str | Path,
    suffix: str,
    volume: Volume,
    part: Callable[[Path], AbstractContextManager[PartFile]],
    progress: Progress | None = None,
) -> Written:
    """Write rows from 0 on to `part-00000<suffix>` and so on in the folder `out`.

    If the folder has parts already, of any suffix, numbering continues after the highest: a stream that has
    read a file does not look at that name again. It sees no file before it is complete.
    """
    folder, written = Path(out), Written()
    folder.mkdir(parents=True, exist_ok=True)
    for number, share in enumerate(volume.shares(), start=_next_number(folder)):
        name = f"part-{number:05}{suffix}"
        written.first = written.first or name
        hidden = folder / f".{name}.writing"
        try:
            before = written.size
            with part(hidden) as open_part:
                _fill(open_part, share, written, progress)
            written.size = before + hidden.stat().st_size  # with what closing the file adds
            hidden.replace(folder / name)
        finally:
            with suppress(FileNotFoundError):
                hidden.unlink()
        written.files += 1
    return written


def _next_number(folder: Path) -> int:
    names = (re.match(r"part-(\d+)", path.name) for path in folder.iterdir())
    return max((int(name[1]) + 1 for name in names if name), default=0)


def _fill(part: PartFile, share: Volume, written: Written, progress: Progress | None) -> None:
    rows = 0
    while share.rows is None or rows < share.rows:
        before = part.size
        wanted = _CHUNK if share.rows is None else min(_CHUNK, share.rows - rows)
        added = part.add(written.rows, wanted, None if share.size is None else share.size - before)
        rows += added
        written.rows += added
        written.size += part.size - before
        if progress is not None:
            progress(written)
        if share.size is not None and part.size >= share.size:
            return


class LineFile:
    """A file of text lines."""

    def __init__(self, path: Path, lines: Lines, header: str = "") -> None:
        self.size = 0
        self._path = path
        self._lines = lines
        self._header = header

    def __enter__(self) -> LineFile:
        self._file: IO[bytes] = self._path.open("wb")
        self.size += self._file.write(self._header.encode())
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def add(self, first: int, rows: int, room: int | None) -> int:
        import numpy as np

        lines = self._lines(first, first + rows)
        _, offsets, text = lines.buffers()
        # The lines are contiguous in Arrow's memory, just as they are in the file.
        ends = np.frombuffer(offsets, dtype=np.int32)[lines.offset : lines.offset + rows + 1]
        count = rows if room is None else min(rows, int(np.searchsorted(ends[1:] - ends[0], room)) + 1)
        self.size += self._file.write(memoryview(text)[ends[0] : ends[count]])
        return count


def spoiled(lines: Lines, share: float, seed: int) -> Lines:
    """The same lines, but about `share` of them (0 to 1) malformed: truncated, mistyped or garbage."""
    if not 0 <= share <= 1:
        raise PipelineError(f"malformed is a share from 0 to 1, not {share}", step="generate")

    def spoil(first: int, last: int) -> pa.StringArray:
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

    return spoil if share else lines
