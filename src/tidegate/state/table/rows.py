"""Rows as bytes, for stores that know nothing of columns, and for digests.

A row is a head of fixed length (which cells are not null, the cells of fixed width, the lengths of the
others) and the other cells behind it. A list is its elements, each as a row of one column with its length
before it; a struct is a row. A null cell is zeros or nothing, so that equal rows are equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import StateError

_LENGTH = struct.Struct("<I")
_DUE = struct.Struct("<q")
_types = pa.types


def encoded(rows: pa.Table) -> list[bytes]:
    """One piece of bytes per row."""
    return _encoded([column.combine_chunks() for column in rows.columns], rows.num_rows)


def encoded_keys(keys: pa.Table) -> list[bytes]:
    """The same for key columns: keys that are equal give equal bytes, minus zero and NaN among them."""
    return _encoded([_normal(column.combine_chunks()) for column in keys.columns], keys.num_rows)


def decoded(rows: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """The rows that `encoded` was given."""
    return pa.Table.from_arrays(_decoded(rows, [field.type for field in schema]), schema=schema)


def packed(rows: Sequence[bytes]) -> bytes:
    """Several rows as one piece."""
    return b"".join([_LENGTH.pack(len(row)) + row for row in rows])


def unpacked(piece: bytes) -> list[bytes]:
    """The rows that `packed` was given."""
    rows, at = [], 0
    while at < len(piece):
        (length,) = _LENGTH.unpack_from(piece, at)
        at += _LENGTH.size
        rows.append(piece[at : at + length])
        at += length
    return rows


def due_of(row: bytes, columns: int) -> int:
    """When a row of state is due, without decoding it; it has so many columns, `_hash` and `_due` first."""
    (due,) = _DUE.unpack_from(row, (columns + 7) // 8 + 8)
    return int(due)


def _encoded(columns: Sequence[Any], count: int) -> list[bytes]:
    valid = np.ones((count, len(columns)), np.bool_)
    heads: list[NDArray[np.uint8]] = []
    tails: list[list[bytes]] = []
    for index, column in enumerate(columns):
        if column.null_count:
            valid[:, index] = column.is_valid().to_numpy(zero_copy_only=False)
        width = _width(column.type)
        if width is not None:
            heads.append(_fixed(column, width, valid[:, index]))
        else:
            cells = _cells(column, valid[:, index])
            tails.append(cells)
            lengths = np.fromiter(map(len, cells), "<u4", count)
            heads.append(lengths.view(np.uint8).reshape(count, 4))
    head = np.hstack([np.packbits(valid, axis=1), *heads])
    length, blob = head.shape[1], head.tobytes()
    rows = [blob[start : start + length] for start in range(0, length * count, length)]
    return [b"".join(parts) for parts in zip(rows, *tails, strict=True)] if tails else rows


def _decoded(rows: Sequence[bytes], kinds: Sequence[pa.DataType]) -> list[Any]:
    count = len(rows)
    widths = [_width(kind) for kind in kinds]
    length = _head_length(kinds)
    blob = b"".join([row[:length] for row in rows])
    head = np.frombuffer(blob, np.uint8).reshape(count, length)
    at = (len(kinds) + 7) // 8
    valid = np.unpackbits(head[:, :at], axis=1, count=len(kinds)).astype(np.bool_)
    starts = np.full(count, length, np.int64)
    columns = []
    for index, (kind, width) in enumerate(zip(kinds, widths, strict=True)):
        if width is not None:
            columns.append(_from_fixed(kind, head[:, at : at + width], valid[:, index]))
            at += width
        else:
            stops = starts + np.ascontiguousarray(head[:, at : at + 4]).view("<u4").ravel()
            spans = zip(rows, starts.tolist(), stops.tolist(), strict=True)
            cells = [row[start:stop] for row, start, stop in spans]
            columns.append(_from_cells(kind, cells, valid[:, index]))
            starts, at = stops, at + 4
    return columns


def _head_length(kinds: Sequence[pa.DataType]) -> int:
    widths = (_width(kind) for kind in kinds)
    return (len(kinds) + 7) // 8 + sum(4 if width is None else width for width in widths)


def _width(kind: pa.DataType) -> int | None:
    """Bytes of a cell; None when that differs from row to row."""
    if _types.is_null(kind):
        return 0
    if _types.is_boolean(kind):
        return 1
    if _types.is_primitive(kind) or _types.is_decimal(kind) or _types.is_fixed_size_binary(kind):
        return int(kind.bit_width) // 8
    if _plain(kind) is not None or _types.is_struct(kind) or _types.is_map(kind):
        return None
    raise StateError(f"state cannot hold a column of type {kind}; cast it to another one")


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """The list or bytes type that a variable one is kept as."""
    if kind in (pa.string(), pa.binary(), pa.string_view(), pa.binary_view()):
        return pa.binary()
    if kind in (pa.large_string(), pa.large_binary()):
        return pa.large_binary()
    if _types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind):
        return pa.large_list(kind.value_field)
    return None


def _fixed(column: Any, width: int, valid: NDArray[np.bool_]) -> NDArray[np.uint8]:
    count = len(column)
    if _types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    data = column.buffers()[1] if width else None
    if data is None or count == 0:
        return np.zeros((count, width), np.uint8)
    start = column.offset * width
    cells = np.frombuffer(data, np.uint8)[start : start + count * width].reshape(count, width)
    return cells if valid.all() else np.where(valid[:, None], cells, np.uint8(0))


def _from_fixed(kind: pa.DataType, cells: NDArray[np.uint8], valid: NDArray[np.bool_]) -> Any:
    count = len(cells)
    if _types.is_null(kind):
        return pa.nulls(count)
    if _types.is_boolean(kind):
        return pa.array(cells.ravel().astype(np.bool_), pa.bool_(), mask=~valid)
    data = pa.py_buffer(np.ascontiguousarray(cells))
    return pa.Array.from_buffers(kind, count, [_validity(valid), data])


def _cells(column: Any, valid: NDArray[np.bool_]) -> list[bytes]:
    kind = column.type
    if _types.is_struct(kind):
        cells = _encoded(column.flatten(), len(column))
    elif _types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
        cells = _joined(entries, np.asarray(column.offsets))
    elif _types.is_nested(kind):
        column = column.cast(_plain(kind))
        cells = _joined(column.values, np.asarray(column.offsets))
    else:
        cells = column.cast(_plain(kind)).to_numpy(zero_copy_only=False).tolist()
    if valid.all():
        return cells
    return [cell if there else b"" for cell, there in zip(cells, valid.tolist(), strict=True)]


def _joined(values: Any, offsets: NDArray[Any]) -> list[bytes]:
    low, high = (int(offsets[0]), int(offsets[-1])) if len(offsets) > 1 else (0, 0)
    items = _encoded([values[low:high]], high - low)
    edges = (offsets - low).tolist()
    return [packed(items[start:stop]) for start, stop in pairwise(edges)]


def _from_cells(kind: pa.DataType, cells: list[bytes], valid: NDArray[np.bool_]) -> Any:
    count = len(cells)
    if _types.is_struct(kind):
        kinds = [kind.field(index).type for index in range(kind.num_fields)]
        empty = bytes(_head_length(kinds))  # all of it null
        children = _decoded([cell or empty for cell in cells], kinds)
        return pa.Array.from_buffers(kind, count, [_validity(valid)], children=children)
    if not _types.is_nested(kind):
        return pa.array(cells, _plain(kind), mask=~valid).cast(kind)
    split = [unpacked(cell) for cell in cells]
    items = [item for parts in split for item in parts]
    lengths = [len(parts) for parts in split]
    if _types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        offsets, (values,) = _edges(lengths, np.int32), _decoded(items, [entry])
        return pa.Array.from_buffers(
            kind, count, [_validity(valid), pa.py_buffer(offsets)], children=[values]
        )
    offsets, (values,) = _edges(lengths, np.int64), _decoded(items, [kind.value_type])
    buffers = [_validity(valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_plain(kind), count, buffers, children=[values]).cast(kind)


def _edges(lengths: Sequence[int], size: type) -> NDArray[Any]:
    edges: NDArray[Any] = np.zeros(len(lengths) + 1, size)
    np.cumsum(lengths, out=edges[1:])
    return edges


def _validity(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _normal(column: Any) -> Any:
    if not _types.is_floating(column.type):
        return column
    column = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
