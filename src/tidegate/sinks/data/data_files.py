"""The data files of an output: staged by attempts, then committed, in sight of any reader, and replaced."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tidegate.sinks.manifest import OutputManifest, Span
from tidegate.sinks.sink import Attempt
from tidegate.storage.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

_DATA = re.compile(r"(\d{12})-(?:(\d{12})-)?.+\.(?:parquet|json)")
_T = TypeVar("_T")
_ATTEMPT = re.compile(r"(\d{12})-(\d{1,11})-(\d+)")

StagedParts: TypeAlias = Mapping[Attempt, Sequence[str]]
"""The files of each attempt, by their names within it."""


def batches_of(name: str) -> Span | None:
    """The batches whose rows are in a data file, by its name; None for any other file."""
    match = _DATA.fullmatch(name)
    return Span(int(match[1]), int(match[2] or match[1])) if match else None


def attempt_of(name: str) -> Attempt | None:
    """The attempt that a name begins with; None when it does not."""
    match = _ATTEMPT.match(name)
    return Attempt(*map(int, match.groups())) if match else None


@dataclass(frozen=True, slots=True)
class Draft:
    """A merge of small files that is at work, or was left by a driver that is gone."""

    span: Span
    id: str

    def name(self, number: int, suffix: str) -> str:
        """Of a merged file; as any data file, it has its first batch in front."""
        return f"{self}-{number:05d}{suffix}"

    def __str__(self) -> str:
        return f"{self.span}-{self.id}"


class DataFiles(ABC):
    """Where the data files of an output are. Errors are OSError, of which StorageError is one."""

    place: str
    """What people call it."""

    @abstractmethod
    def prepare(self) -> None:
        """Have what has to be there. Raises OSError when the place cannot be used for output."""

    @abstractmethod
    def check_there(self) -> None:
        """Raise SinkError when the place is not there, or holds output in another layout."""

    # What attempts have written.

    @abstractmethod
    def staged(self) -> StagedParts:
        """What attempts have written and nobody has settled or dropped."""

    @abstractmethod
    def settle(self, attempt: Attempt, parts: Sequence[str], staged: Sequence[str]) -> list[str]:
        """Give the files of a committed attempt the names that its manifest will hold, and answer these.

        `staged`: those of the attempt that are there. FileNotFoundError when a file is missing; settling
        again changes nothing.
        """

    @abstractmethod
    def drop(self, staged: StagedParts) -> None:
        """Remove what attempts have left. That there is nothing is fine."""

    # Files that a manifest names.

    @abstractmethod
    def show(self, names: Iterable[str]) -> None:
        """Have data files where any reader looks for them; doing it again changes nothing."""

    @abstractmethod
    def show_again(self, spans: Sequence[Span], load: Callable[[Span], OutputManifest]) -> None:
        """At a start: show what a crash has kept out of sight; `spans` are the manifests that count."""

    @abstractmethod
    def latest_in_sight(self, after: int) -> int:
        """A batch after `after` of which any reader sees a data file; -1 for none."""

    @abstractmethod
    def find(self, name: str) -> Storage:
        """The place that a data file is in. FileNotFoundError when it is in none."""

    @abstractmethod
    def fetch(self, name: str) -> pa.Buffer:
        """A whole data file. FileNotFoundError when it is missing."""

    @abstractmethod
    def end(self, name: str, length: int) -> pa.Buffer:
        """The last bytes of a data file, all of it when it is shorter. FileNotFoundError as for `fetch`."""

    @abstractmethod
    def sizes(self, names: Sequence[str]) -> list[int]:
        """In bytes, of data files that are in sight. FileNotFoundError when one is missing."""

    @abstractmethod
    def each(self, function: Callable[[str], _T], names: Iterable[str]) -> list[_T]:
        """What a function that reads data files answers for each; side by side where that takes long."""

    # Merging.

    @abstractmethod
    def add_merged(self, draft: Draft, name: str, content: Iterator[bytes]) -> None:
        """Have a merged file, durably, which is a data file as soon as a manifest names it."""

    @abstractmethod
    def drafts(self) -> list[Draft]:
        """Of which there are merged files that nobody has settled."""

    @abstractmethod
    def end_draft(self, draft: Draft, *, keep: Sequence[str]) -> None:
        """Remove its merged files but these, which a manifest names."""

    @abstractmethod
    def replace(self, span: Span, names: Sequence[str]) -> None:
        """Take data files out of sight whose rows others hold by now; they can be read for a while."""

    @abstractmethod
    def remove_replaced(self, grace: float) -> None:
        """Remove what was replaced more than `grace` seconds ago."""

    def settle_sight(self) -> None:  # noqa: B027
        """What was done to the files in sight outlives a power cut."""

    # Copies.

    @abstractmethod
    def staged_in(self, attempt: Attempt, part: str) -> tuple[Storage, str]:
        """The place and name of a file of an attempt."""

    @abstractmethod
    def take(self, names: Sequence[str], source: DataFiles) -> None:
        """Have data files of another output, too, in sight. FileNotFoundError when one is missing."""
