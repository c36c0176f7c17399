"""Check that requirements.lock holds what pyproject.toml asks for, and names no host."""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print every problem; 1 if there is one."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned: defaultdict[str, list[str]] = defaultdict(list)
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", lock, re.MULTILINE):
        pinned[canonicalize_name(name)].append(version)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [
        project["project"]["dependencies"],
        *project["project"].get("optional-dependencies", {}).values(),
        *project.get("dependency-groups", {}).values(),
    ]
    problems = ["requirements.lock names a host"] if "://" in lock else []
    for text in (text for group in groups for text in group if isinstance(text, str)):
        wanted = Requirement(text)
        found = pinned[canonicalize_name(wanted.name)]
        if not found or not all(wanted.specifier.contains(version) for version in found):
            problems.append(
                f"pyproject.toml wants {text!r}, the lock has {', '.join(found) or 'none'}: make lock"
            )
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"check_lock: {len(pinned)} packages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
