"""What `tidegate doctor` found, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

Need = Literal["required", "optional", "lab"]

_TITLES: dict[Need, str] = {
    "required": "needed to run pipelines",
    "optional": "good to have",
    "lab": "needed only for the lab (emulated clusters and networks; not part of this version yet)",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    name: str
    need: Need
    ok: bool
    found: str
    fix: str
    """What to do when it is not ok; may be empty otherwise."""


def report(findings: Sequence[Finding], console: Console) -> bool:
    """Print the findings by need; whether everything required is there."""
    from rich.text import Text

    for need, title in _TITLES.items():
        group = [finding for finding in findings if finding.need == need]
        if group:
            console.print(Text(title, style="bold"), soft_wrap=True)
        for finding in group:
            mark, style = ("ok", "green") if finding.ok else ("no", "red" if need == "required" else "yellow")
            console.print(
                Text.assemble("  ", (mark, style), f"  {finding.name}: {finding.found}"), soft_wrap=True
            )
            if not finding.ok:
                console.print(Text(f"      fix: {finding.fix}", style=style), soft_wrap=True)
    missing = [finding.name for finding in findings if finding.need == "required" and not finding.ok]
    if missing:
        console.print(Text(f"cannot run pipelines yet: {', '.join(missing)}", style="bold red"))
    else:
        console.print(Text("ready to run pipelines", style="bold green"))
    return not missing
