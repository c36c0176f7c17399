"""Files in an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from tidegate.errors import MissingExtraError, StorageError
from tidegate.storage.storage import Listed, Storage, checked, missing

if TYPE_CHECKING:
    import pyarrow as pa

_WRITER = "tidegate-writer"
"""The attribute of an object that tells who created it."""
_PATIENCE = 120.0
"""Seconds for which a store may be away until that is an error."""
_AT_ONCE = 8 << 20
"""Up to this many bytes a file is written by one request."""
_PAGE = 1000
_AT_A_TIME = 16
"""Requests side by side."""
_T = TypeVar("_T")
_R = TypeVar("_R")
_BY_BUCKET = ("s3", "s3a", "gs")
"""Addresses of the form scheme://bucket/prefix."""


class Remote(Storage):
    """An object store, through obstore: `s3://bucket/prefix` and what else it knows.

    Region, endpoint and credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...).
    A store that is away, or answers that it is busy, is asked again for two minutes.
    """

    mapped = False

    def __init__(self, url: str, *, patience: float = _PATIENCE) -> None:
        """`patience`: for how many seconds a store that is away is asked again."""
        try:
            import obstore
            from obstore import store
        except ImportError:
            raise MissingExtraError("s3", f"the object store at {url}") from None
        self.url = url.rstrip("/") if not url.endswith("//") else url
        self.patience = patience
        self._api: Any = obstore
        # Of the whole bucket: places in it share connections, and the store copies files between them.
        self._bucket, self._prefix = _split(self.url)
        plain = url.startswith("s3://") and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        try:
            self._store: Any = store.from_url(
                self._bucket,
                client_options={"allow_http": True} if plain else None,
                retry_config=_retry(patience),
            )
        except Exception as error:
            raise StorageError(f"{url} cannot be used: {error}") from error

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        # An object is complete or not there: the store sees to that.
        key, rest = self._key(name), iter(parts)
        first, size = list[bytes](), 0
        for part in rest:
            first.append(bytes(part))
            size += len(part)
            if size > _AT_ONCE:
                whole = chain(first, map(bytes, rest))
                self._call("write", name, self._api.put, self._store, key, whole)
                return
        self._call("write", name, self._api.put, self._store, key, b"".join(first), use_multipart=False)

    def create(self, name: str, content: bytes) -> bool:
        me = uuid4().hex
        try:
            self._call(
                *("create", name, self._api.put, self._store, self._key(name), content),
                attributes={_WRITER: me},
                mode="create",
                use_multipart=False,
            )
        except FileExistsError:
            # An answer may have been lost, and the object be there by the first try of this very call.
            there = self._get(name)
            return bool(there.attributes.get(_WRITER) == me)
        return True

    def open(self, name: str) -> pa.Buffer:
        return _buffer(self._get(name).bytes())

    def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        starts, lengths = [offset for offset, _ in spans], [length for _, length in spans]
        found = self._call(
            "read", name, self._api.get_ranges, self._store, self._key(name), starts=starts, lengths=lengths
        )
        return [_buffer(part) for part in found]

    def start(self, name: str, length: int) -> pa.Buffer:
        return _buffer(self._get(name, {"range": (0, length)}).bytes())

    def end(self, name: str, length: int) -> pa.Buffer:
        return _buffer(self._get(name, {"range": {"suffix": length}}).bytes())

    def size(self, name: str) -> int:
        return int(self._call("read", name, self._api.head, self._store, self._key(name))["size"])

    def names(self) -> list[str]:
        return sorted(item["path"].removeprefix(self._prefix) for item in self._here()["objects"])

    def listed(self, after: str = "") -> Iterator[Listed]:
        skip: str | None = after
        while skip is not None:
            found, skip = self._pages(skip), None
            for item in found:
                name = item["path"].removeprefix(self._prefix)
                place, is_within, _ = name.partition("/")
                if is_within:  # Not ours: go on behind all that is in there.
                    skip = f"{place}0"  # The next character after the slash.
                    break
                yield Listed(name, item["size"], item["last_modified"].timestamp())

    def delete(self, *names: str) -> None:
        keys = [self._key(name) for name in names]
        try:
            self._call("delete", ", ".join(names), self._api.delete, self._store, keys)
        except FileNotFoundError:
            # Some stores say so when there is none, and may have left out the others.
            for name in names if len(names) > 1 else ():
                self.delete(name)

    def copy(self, name: str, target: Storage, new_name: str) -> None:
        if isinstance(target, Remote) and target._bucket == self._bucket:
            source, to = self._key(name), target._key(new_name)
            # By itself, a store copies files of up to 5 GB.
            with suppress(StorageError):
                self._call("copy", name, self._api.copy, self._store, source, to)
                return
        super().copy(name, target, new_name)

    def places(self) -> list[str]:
        return sorted(path.removeprefix(self._prefix).strip("/") for path in self._here()["common_prefixes"])

    def clear(self) -> None:
        while keys := [item["path"] for item in islice(self._pages(""), _PAGE)]:
            self._call("delete", "all", self._api.delete, self._store, keys)

    def within(self, name: str) -> Remote:
        inner = object.__new__(Remote)
        inner.url, inner._prefix = f"{self.url}/{checked(name)}", f"{self._prefix}{name}/"
        inner._api, inner._store, inner._bucket = self._api, self._store, self._bucket
        inner.patience = self.patience
        return inner

    def each(self, function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        todo = list(items)
        if len(todo) < 2:
            return list(map(function, todo))
        with ThreadPoolExecutor(min(len(todo), _AT_A_TIME), thread_name_prefix="store") as pool:
            return list(pool.map(function, todo))

    def _key(self, name: str) -> str:
        return self._prefix + checked(name)

    def _get(self, name: str, options: Any = None) -> Any:
        return self._call("read", name, self._api.get, self._store, self._key(name), options=options)

    def _here(self) -> Any:
        prefix = self._prefix.rstrip("/") or None
        return self._call("list", "", self._api.list_with_delimiter, self._store, prefix)

    def _pages(self, after: str) -> Iterator[Any]:
        prefix = self._prefix.rstrip("/") or None
        offset = self._prefix + after or None
        pages = self._call("list", "", self._api.list, self._store, prefix, offset=offset, chunk_size=_PAGE)
        while page := self._call("list", "", next, pages, ()):
            yield from page

    def _call(self, action: str, name: str, call: Any, *args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        except FileNotFoundError:
            raise missing(name, self.url) from None
        except self._api.exceptions.AlreadyExistsError as error:
            raise FileExistsError(name) from error
        except self._api.exceptions.BaseError as error:
            raise StorageError(f"cannot {action} {name or 'names'} in {self.url}: {error}") from error


def _split(url: str) -> tuple[str, str]:
    """The bucket, and the keys within it that begin a place's.

    >>> _split("s3://bucket/a/b")
    ('s3://bucket', 'a/b/')
    >>> _split("s3://bucket")
    ('s3://bucket', '')
    >>> _split("az://container/a")
    ('az://container/a', '')
    """
    parts = urlsplit(url)
    if parts.scheme not in _BY_BUCKET:
        return url, ""
    prefix = parts.path.strip("/")
    return f"{parts.scheme}://{parts.netloc}", f"{prefix}/" if prefix else ""


def _retry(patience: float) -> Any:
    return {
        "max_retries": 1000,  # The time decides.
        "retry_timeout": timedelta(seconds=patience),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        },
    }


def _buffer(content: Any) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(content)
