"""A digest of state: the same for the same rows, whatever run, backend or order they are in."""

from __future__ import annotations

import hashlib

import pyarrow as pa

from tidegate.state.table.rows import encoded


def digest_of(rows: pa.Table) -> str:
    """The digest of rows (all of a table and key group, columns as read) as 32 hex digits."""
    total = hashlib.blake2b(digest_size=16)
    total.update(",".join(f"{field.name}:{field.type}" for field in rows.schema).encode())
    for row in sorted(encoded(rows)):
        total.update(row)
    return total.hexdigest()
