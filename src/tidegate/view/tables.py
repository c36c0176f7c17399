"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import typer

_UNBOUNDED = 10_000


def print_rows(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[str] | None = None,
    fold: str | None = None,
) -> None:
    """A table without lines. Elsewhere than on a terminal nothing is cut or folded.

    Columns are aligned to the right, except those in `left`; without `left`, just those of numbers are.
    On a narrow terminal the column `fold` takes more lines; without it, any column may.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(names):
        numbers = all(map(_is_number, (row[place] for row in rows))) if left is None else name not in left
        side: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(name, justify=side, overflow="fold", no_wrap=fold not in (None, name))
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    console.width = console.width if console.is_terminal else _UNBOUNDED
    console.print(table)


def print_pairs(rows: Sequence[tuple[str, str]]) -> None:
    """A label and a text per line."""
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        typer.echo(f"{label:<{width}}  {text}")


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").rstrip("%").isdigit()
