"""JSON objects with a checksum: the last member is the CRC-32 of the object without it."""

from __future__ import annotations

import json
import zlib
from typing import Any

_CHECKSUM = b', "checksum": '


def sealed(form: dict[str, Any]) -> bytes:
    """A JSON object, not empty, with its checksum.

    >>> sealed({"generation": 3})
    b'{"generation": 3, "checksum": 1852745314}'
    """
    body = json.dumps(form).encode()
    return body[:-1] + _CHECKSUM + str(zlib.crc32(body)).encode() + b"}"


def opened(content: bytes) -> dict[str, Any]:
    """The object; one without a checksum, as earlier versions wrote them, is taken as it is.

    Raises ValueError when it is damaged.
    """
    form = json.loads(content)
    if not isinstance(form, dict):
        raise ValueError("it is not a JSON object")
    checksum = form.pop("checksum", None)
    if checksum is not None and zlib.crc32(content[: content.rfind(_CHECKSUM)] + b"}") != checksum:
        raise ValueError("its checksum does not match its content")
    return form
