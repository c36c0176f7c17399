"""The state in a checkpoint, for people and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from tidegate.run.inspection import readable_columns
from tidegate.view.tables import print_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.run.inspection import GroupSize, Recorded
    from tidegate.state.table.table import StateTable

_GROUPS_SHOWN = 10

Sizes = Mapping[str, Sequence["GroupSize"]]
"""The sizes of key groups, largest first, of each table by name; may lack tables."""


def overview(
    pipeline: str, batches: Sequence[Recorded], tables: Sequence[StateTable], sizes: Sizes
) -> dict[str, Any]:
    """Batches and tables as JSON values."""
    return {
        "pipeline": pipeline,
        "batches": [
            {
                "batch": recorded.batch_id,
                "began": recorded.began,
                "watermark": recorded.watermark,
                "rows": recorded.rows,
                "bytes": recorded.bytes,
                "runs": [run.name for run in recorded.manifest.runs],
            }
            for recorded in batches
        ],
        "tables": [
            {
                "name": table.name,
                "kind": table.kind,
                **{
                    part: {field.name: str(field.type) for field in columns}
                    for part, columns in zip(("key", "columns"), readable_columns(table), strict=True)
                },
                **({"groups": sizes[table.name]} if table.name in sizes else {}),
            }
            for table in tables
        ],
    }


def print_overview(batches: Sequence[Recorded], tables: Sequence[StateTable], sizes: Sizes) -> None:
    print_rows(
        ("batch", "began", "watermark", "rows", "bytes", "runs"),
        [
            (
                str(recorded.batch_id),
                _moment(recorded.began),
                _moment(recorded.watermark),
                f"{recorded.rows:,}",
                f"{recorded.bytes:,}",
                str(len(recorded.manifest.runs)),
            )
            for recorded in batches
        ],
    )
    typer.echo()
    print_rows(
        ("table", "kind", "key", "columns"),
        [(table.name, table.kind, *map(_columns, readable_columns(table))) for table in tables],
    )
    for name, groups in sizes.items():
        typer.echo()
        _print_groups(name, groups, batches[0].manifest.groups)


def print_table(rows: pa.Table) -> None:
    print_rows(rows.column_names, [[_text(value) for value in row.values()] for row in rows.to_pylist()])


def _print_groups(name: str, sizes: Sequence[GroupSize], count: int) -> None:
    rows = sum(size.rows for size in sizes)
    print_rows(
        ("key group", "rows", "bytes", "share"),
        [
            (str(size.group), f"{size.rows:,}", f"{size.bytes:,}", f"{size.rows / rows:.1%}")
            for size in sizes[:_GROUPS_SHOWN]
        ],
    )
    rest = f" ({_GROUPS_SHOWN} are shown)" if len(sizes) > _GROUPS_SHOWN else ""
    skew = sizes[0].rows * count / rows if rows else 1.0
    typer.echo(
        f"{name}: {rows:,} rows in {len(sizes)} of {count} key groups{rest}; "
        f"the largest has {skew:.1f} times the mean"
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 16 else f"({len(value):,} bytes)"
    return "null" if value is None else str(value)
