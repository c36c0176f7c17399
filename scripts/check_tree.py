"""Check that src/tidegate has the rooms it should have, that none fills up, and that tests mirror it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tidegate"
TESTS = ROOT / "tests"

ROOMS = frozenset(
    [
        "batch",
        "cli",
        "cluster",
        "config",
        "control",
        "lab",
        "ledger",
        "operators",
        "pipeline",
        "rescale",
        "run",
        "security",
        "sim",
        "sinks",
        "sources",
        "spark",
        "state",
        "storage",
        "testing",
        "translation",
        "view",
    ]
)
MODULES = frozenset({"__init__.py", "disk.py", "errors.py", "faults.py", "units.py", "py.typed"})
STATE = frozenset({"__init__.py", "codec.py", "fleet", "log", "node", "supervisor", "table", "task", "wire"})
"""What is in `state`: rooms, and how values are written in all of them."""
WITHOUT_SOURCE = frozenset({"soak"})
"""Folders of tests that belong to no room."""
MOST_MODULES = 24
MOST_LINES = 450
SAYS_NOTHING = frozenset({"common", "helper", "helpers", "manager", "misc", "util", "utils"})
JVM = re.compile(r"\b(_jvm|_jdf|_jsc|_jsparkSession|_jwrite|_jo|_jc|_jsqm|_gateway|_accumulatorServer)\b")
"""PySpark's way into the JVM, which only `spark` may take."""


def parts(folder: Path) -> set[str]:
    """What is in a folder and not made by running it."""
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


def differences(what: str, found: set[str], wanted: frozenset[str]) -> Iterator[str]:
    """Names that are missing or were not expected; a new room is entered above, and in the docs."""
    yield from (f"{what}/{name} is missing" for name in sorted(wanted - found))
    yield from (f"{what}/{name} is not part of the tree" for name in sorted(found - wanted))


def problems() -> Iterator[str]:
    """One line per problem."""
    yield from differences("src/tidegate", parts(SOURCE), ROOMS | MODULES)
    yield from differences("src/tidegate/state", parts(SOURCE / "state"), STATE)
    folders = [SOURCE, *(path for path in sorted(SOURCE.rglob("*")) if path.is_dir())]
    for folder in folders:
        modules = sorted(folder.glob("*.py"))
        if len(modules) > MOST_MODULES:
            yield f"{folder.relative_to(ROOT)} has {len(modules)} modules, more than {MOST_MODULES}: split it"
        for module in modules:
            yield from problems_of(module)
    for folder in (path for path in sorted(TESTS.rglob("*")) if path.is_dir() and path.name != "__pycache__"):
        within = folder.relative_to(TESTS)
        if within.parts[0] not in WITHOUT_SOURCE and not (SOURCE / within).is_dir():
            yield f"tests/{within} mirrors no folder of src/tidegate"


def problems_of(module: Path) -> Iterator[str]:
    """What is wrong with one module."""
    name = module.relative_to(ROOT)
    text = module.read_text(encoding="utf-8")
    if module.stem.strip("_") in SAYS_NOTHING:
        yield f"{name}: the name does not say what is in it"
    if (lines := text.count("\n")) > MOST_LINES:
        yield f"{name} has {lines} lines, more than {MOST_LINES}: look for the second subject in it"
    if "spark" not in module.relative_to(SOURCE).parts and (found := JVM.search(text)):
        yield f"{name} uses {found[1]}: whatever touches the JVM belongs into src/tidegate/spark"


def main() -> int:
    """Print every problem; 1 if there is one."""
    found = list(problems())
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"check_tree: {len(list(SOURCE.rglob('*.py')))} modules, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
