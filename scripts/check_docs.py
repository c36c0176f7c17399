"""Check README.md and docs/**/*.md: Python blocks compile, relative links lead somewhere.

A block that is not meant to compile on its own starts its fence with ```python fragment.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>```+|~~~+)[ \t]*(?P<info>[^\n`]*)$")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*\s*$")


def split(text: str) -> tuple[list[tuple[int, str, str]], list[tuple[int, str]]]:
    """The fenced blocks as (line, info, body), and the lines outside of them as (line, text)."""
    blocks: list[tuple[int, str, str]] = []
    prose: list[tuple[int, str]] = []
    opened: tuple[int, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, body = (number, fence["ticks"], fence["info"].strip()), []
            else:
                prose.append((number, line))
        elif fence and not fence["info"] and fence["ticks"].startswith(opened[1]):
            blocks.append((opened[0], opened[2], textwrap.dedent("\n".join(body))))
            opened = None
        else:
            body.append(line)
    if opened is not None:
        blocks.append((opened[0], "unclosed", ""))
    return blocks, prose


def python_problem(source: str) -> str | None:
    """Why the block does not compile, or None. Prompts (>>>) are taken off first."""
    if source.lstrip().startswith(">>>"):
        kept = [line[4:] for line in source.splitlines() if line.startswith((">>>", "..."))]
        source = "\n".join(kept)
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno} of the block: {error.msg}"
    return None


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, made as the usual Markdown hosts make them."""
    found = set()
    for _, line in split(text)[1]:
        heading = HEADING.match(line)
        if heading:
            words = re.sub(r"[^\w\- ]", "", heading["text"].lower())
            found.add(words.replace(" ", "-"))
    return found


def problems_of(page: Path) -> Iterator[str]:
    """One line per problem, each naming page and line."""
    name = page.relative_to(ROOT)
    blocks, prose = split(page.read_text(encoding="utf-8"))
    for number, info, body in blocks:
        if info == "unclosed":
            yield f"{name}:{number}: this code block is never closed"
        words = info.split()
        if words[:1] == ["python"] and "fragment" not in words[1:]:
            problem = python_problem(body)
            if problem:
                yield f"{name}:{number}: Python block does not compile: {problem}"
    for number, line in prose:
        for link in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            target, _, anchor = link["target"].partition("#")
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            aim = (page.parent / target).resolve() if target else page
            if not aim.exists():
                yield f"{name}:{number}: link to {link['target']}: no such file"
            elif anchor and aim.suffix == ".md" and anchor not in anchors(aim.read_text(encoding="utf-8")):
                yield f"{name}:{number}: link to {link['target']}: no such heading"


def main() -> int:
    """Print every problem; 1 if there is one."""
    pages = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.is_file()]
    problems = [problem for page in pages for problem in problems_of(page)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"check_docs: {len(pages)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
