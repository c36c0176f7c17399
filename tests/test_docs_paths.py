"""The documentation names modules by their path below `src/tidegate`: each one exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tidegate"
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")
MODULE = re.compile(r"`((?:\w+/)+\w+\.py)`")
DOTTED = re.compile(rf"\btidegate\.((?:{'|'.join(FOLDERS)})(?:\.[a-z_]+)*)")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(MODULE.findall(text))
    missing = [name for name in named if not ((PACKAGE / name).exists() or (ROOT / name).exists())]
    # The last part of a dotted name may be an attribute of the module before it.
    for name in DOTTED.findall(text):
        path = PACKAGE.joinpath(*name.split("."))
        if not any(
            place.exists() for place in (path, path.with_suffix(".py"), path.parent.with_suffix(".py"))
        ):
            missing.append(f"tidegate.{name}")
    assert not missing


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_its_place_on_the_page_of_the_tree(folder: str) -> None:
    assert f"`{folder}/`" in (ROOT / "docs" / "concepts" / "tree.md").read_text(encoding="utf-8")
