"""A plan as a tree of text and as a picture."""

from __future__ import annotations

from html import escape

from tidegate.pipeline.plan import Plan
from tidegate.pipeline.step import Step

_BOX, _HIGH, _GAP_X, _GAP_Y, _MARGIN = 250, 54, 56, 22, 16
_FILL = {"source": "#d9ecff", "sink": "#dcf5e3", "keyed": "#fdebd0", "step": "#f4f4f6"}
_LINE = {"source": "#2f7ec2", "sink": "#2f9e5b", "keyed": "#c9821f", "step": "#8a8a94"}


def tree(plan: Plan) -> str:
    """One line per step below the pipeline's name; a step with several inputs is drawn below its first."""
    rows: list[tuple[str, str]] = []

    def walk(step: Step, stem: str, last: bool) -> None:
        others = "".join(f" + {other.name}" for other in step.inputs[1:])
        about = f"{step.describe()}  [{_line(step)}]".lstrip()
        rows.append((f"{stem}{'└─ ' if last else '├─ '}{step.name}{others}", about))
        below = plan.consumers(step)
        for number, child in enumerate(below):
            branch, final = stem + ("   " if last else "│  "), number == len(below) - 1
            if child.inputs[0] is step:
                walk(child, branch, final)
            else:
                rows.append((f"{branch}{'└─ ' if final else '├─ '}→ {child.name}", ""))

    for root in plan.sources:
        walk(root, "", root is plan.sources[-1])
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join([plan.name, *(f"{left:<{width}}  {right}".rstrip() for left, right in rows)])


def html(plan: Plan) -> str:
    """A self-contained fragment: boxes from left to right, sources first."""
    column = _columns(plan)
    row = _rows(plan, column)
    width = 2 * _MARGIN + (max(column.values(), default=0) + 1) * (_BOX + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + (max(row.values(), default=0) + 1) * (_HIGH + _GAP_Y) - _GAP_Y + 24
    place = {
        step: (_MARGIN + column[step] * (_BOX + _GAP_X), _MARGIN + 24 + row[step] * (_HIGH + _GAP_Y))
        for step in plan.steps
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        f'<text x="{_MARGIN}" y="24" font-size="15" font-weight="600" fill="#222">{escape(plan.name)}</text>',
    ]
    parts += [_edge(place[above], place[step]) for step in plan.steps for above in step.inputs]
    parts += [_box(step, *place[step]) for step in plan.steps]
    return "".join([*parts, "</svg>"])


def document(title: str, fragment: str) -> str:
    """A whole page around the fragment that `html` gives: right in any browser, in UTF-8."""
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{escape(title)}</title></head>\n<body>{fragment}</body>\n</html>\n"
    )


def _columns(plan: Plan) -> dict[Step, int]:
    column: dict[Step, int] = {}
    for step in plan.steps:
        column[step] = 1 + max((column[above] for above in step.inputs), default=-1)
    return column


def _rows(plan: Plan, column: dict[Step, int]) -> dict[Step, int]:
    """Beside its first input where that row is free, else in the next free row of the column."""
    row: dict[Step, int] = {}
    taken: set[tuple[int, int]] = set()
    for step in plan.steps:
        at = row[step.inputs[0]] if step.inputs else 0
        while (column[step], at) in taken:
            at += 1
        # Rows of sources are kept apart from the branches of the sources above them.
        if not step.inputs and row:
            at = max(at, max(row.values()) + 1)
        row[step] = at
        taken.add((column[step], at))
    return row


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX, start[1] + _HIGH // 2, end[0], end[1] + _HIGH // 2
    bend = (x1 + x2) // 2
    return (
        f'<path d="M{x1},{y1} C{bend},{y1} {bend},{y2} {x2 - 6},{y2}" fill="none" stroke="#9aa0a8" '
        f'stroke-width="1.5"/><path d="M{x2 - 7},{y2 - 4} L{x2},{y2} L{x2 - 7},{y2 + 4} z" fill="#9aa0a8"/>'
    )


def _box(step: Step, x: int, y: int) -> str:
    text = step.describe()
    short = text if len(text) <= 35 else text[:34] + "…"
    return (
        f"<g><title>{escape(f'{step.name}: {text} ({step.where})')}</title>"
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HIGH}" rx="7" fill="{_FILL[step.role]}" '
        f'stroke="{_LINE[step.role]}"/>'
        f'<text x="{x + 12}" y="{y + 21}" font-size="12" font-weight="600" fill="#222">{escape(step.name)}'
        f'<tspan font-weight="400" fill="#8a8a94" dx="8">{escape(_line(step))}</tspan></text>'
        f'<text x="{x + 12}" y="{y + 40}" font-size="12" fill="#444">{escape(short)}</text></g>'
    )


def _line(step: Step) -> str:
    return f"{step.where.file.rsplit('/', 1)[-1]}:{step.where.line}"
