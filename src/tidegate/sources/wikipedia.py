"""Two workloads of JSON lines: changes on Wikipedia, and names of servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.sources._words import below, words
from tidegate.sources.files import Files

if TYPE_CHECKING:
    import pyarrow as pa

_CHANGES = (
    "id bigint, type string, namespace int, title string, comment string, timestamp timestamp, user string, "
    "bot boolean, minor boolean, length struct<old: bigint, new: bigint>, server_name string, wiki string"
)
_SERVERS, _SERVER_IDS = 100_000, 100


class Wikipedia(Files):
    """Changes in the form of Wikimedia's stream of recent changes, as JSON lines in the folder `path`.

    `timestamp` is a timestamp here (the stream has seconds since 1970) and is the event time; fields of
    the stream that are not in the schema are ignored. `tidegate generate wikipedia` writes such files.
    """

    __slots__ = ()

    def __init__(
        self, path: str | Path, grace: str = "10 seconds", event_time: str | None = "timestamp"
    ) -> None:
        super().__init__(path, "json", _CHANGES, event_time, grace)

    def describe(self) -> str:
        return f"Wikipedia {self.path}"


class ServerNames(Files):
    """Lines `{"id": 1..100, "server_name": "server-<1..100000>"}` in the folder `path`.

    They carry no event time. `tidegate generate server-names` writes such files.
    """

    __slots__ = ()

    def __init__(self, path: str | Path, grace: str = "0 seconds", event_time: str | None = None) -> None:
        super().__init__(path, "json", "id bigint, server_name string", event_time, grace)

    def describe(self) -> str:
        return f"ServerNames {self.path}"


def server_lines(seed: int, first: int, last: int) -> pa.StringArray:
    """Those of `ServerNames` from `first` up to but not including `last`; ids and names are uniform."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = np.arange(first, last)
    ids = below(words(seed, 1, offsets), _SERVER_IDS) + 1
    servers = below(words(seed, 2, offsets), _SERVERS) + 1
    texts = (pa.array(numbers).cast(pa.string()) for numbers in (ids, servers))
    return pc.binary_join_element_wise(
        '{"id": ', next(texts), ', "server_name": "server-', next(texts), '"}\n', ""
    )
