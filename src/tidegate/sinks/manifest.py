"""The records that make batches of a files sink visible. Each names the one before it: none can go missing.

A manifest stands for one batch, or, once compacted, for all batches from `first` to `last`. Its first line is
a header, enough to check the chain; the second one has the names of the data files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

_NAME = re.compile(r"(\d{12})(?:-(\d{12}))?\.json")


class Span(NamedTuple):
    """The batches that a manifest stands for, as its file is named."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self}.json"

    def __str__(self) -> str:
        return f"{self.first:012d}" + (f"-{self.last:012d}" if self.last > self.first else "")

    def holds(self, other: Span) -> bool:
        return self.first <= other.first and other.last <= self.last

    @classmethod
    def parse(cls, name: str) -> Span | None:
        """None when it is not the name of a manifest."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2] or match[1])) if match else None


class Link(NamedTuple):
    """A batch, by its number and by a digest of what it and all before it have written."""

    batch_id: int
    digest: str


@dataclass(frozen=True, slots=True)
class Header:
    pipeline: str
    first: int
    last: int
    after: Link | None
    """The batch before the first one; None when that was the first of all."""
    digest: str
    """Of the last batch, and so of all up to it. It outlives compaction."""
    rows: int
    body: str
    """A digest of the second line."""

    @property
    def span(self) -> Span:
        return Span(self.first, self.last)

    @property
    def link(self) -> Link:
        """What the next manifest names as its predecessor."""
        return Link(self.last, self.digest)


@dataclass(frozen=True, slots=True)
class OutputManifest:
    """What committed batches have written."""

    header: Header
    files: tuple[str, ...]
    """Names in the data folder, in the order of the batches."""
    schema: dict[str, Any]
    """Of the last batch, in Spark's own JSON form."""

    @classmethod
    def of_batch(
        cls,
        pipeline: str,
        batch_id: int,
        after: Link | None,
        *,
        rows: int,
        files: Sequence[str],
        schema: dict[str, Any],
    ) -> OutputManifest:
        body = _body(files, schema)
        told = json.dumps([pipeline, batch_id, after, rows, body])
        header = Header(
            pipeline, batch_id, batch_id, after, _digest(told.encode()), rows, _digest(body.encode())
        )
        return cls(header, tuple(files), schema)

    @classmethod
    def compacted(cls, parts: Sequence[OutputManifest], files: Sequence[str]) -> OutputManifest:
        """One that stands for all these, a chain without a gap, with their rows in these files."""
        start, end = parts[0].header, parts[-1].header
        header = Header(
            pipeline=end.pipeline,
            first=start.first,
            last=end.last,
            after=start.after,
            digest=end.digest,
            rows=sum(part.header.rows for part in parts),
            body=_digest(_body(files, parts[-1].schema).encode()),
        )
        return cls(header, tuple(files), parts[-1].schema)

    def encode(self) -> bytes:
        header = json.dumps(asdict(self.header))
        return f"{_digest(header.encode())} {header}\n{_body(self.files, self.schema)}\n".encode()


def decode_header(line: bytes) -> Header:
    """Raises ValueError when it is damaged, or of another version."""
    digest, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or digest.decode(errors="replace") != _digest(text):
        raise ValueError("its checksum does not match")
    try:
        fields = json.loads(text)
        return Header(**fields | {"after": Link(*fields["after"]) if fields["after"] else None})
    except (TypeError, KeyError):
        raise ValueError("it is of another version of Tidegate") from None


def decode(content: bytes) -> OutputManifest:
    """Raises ValueError when it is damaged, or of another version."""
    line, _, body = content.partition(b"\n")
    header = decode_header(line + b"\n")
    if not body.endswith(b"\n") or _digest(body[:-1]) != header.body:
        raise ValueError("its checksum does not match")
    fields = json.loads(body)
    return OutputManifest(header, tuple(fields["files"]), fields["schema"])


def standing_for(spans: Sequence[Span]) -> dict[Span, list[Span]]:
    """Those that count, in order, each with the others that it stands for: those are about to be removed."""
    found: dict[Span, list[Span]] = {}
    newest: Span | None = None
    for span in sorted(spans, key=lambda span: (span.first, -span.last)):
        if newest is not None and newest.holds(span):
            found[newest].append(span)
        else:
            found[span], newest = [], span
    return found


def effective(spans: Sequence[Span]) -> list[Span]:
    """Those that count, in order."""
    return list(standing_for(spans))


def gap(headers: Sequence[Header], before: Link | None = None) -> str | None:
    """What is wrong with a chain, of which these should be all after `before`; None when it is whole."""
    for header in headers:
        if header.after != before:
            lost = f"batch {header.after.batch_id}" if header.after else "no batch"
            there = f"batch {before.batch_id}" if before else "none"
            return f"batch {header.first} follows {lost}, but the manifest before it is that of {there}"
        before = header.link
    return None


def _body(files: Sequence[str], schema: dict[str, Any]) -> str:
    return json.dumps({"files": list(files), "schema": schema})


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
