"""The one line in a Spark error that a person needs."""

from __future__ import annotations

import re

_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning)): .*$", re.MULTILINE)


def reason(error: BaseException) -> str:
    """Why it failed: the Python error of a worker where there is one, else Spark's own first line.

    >>> reason(RuntimeError("[NOT_FOUND] There is no valu. SQLSTATE: 42703; line 1 pos 0;\\n'Filter"))
    'There is no valu.'
    >>> reason(RuntimeError("An error occurred while calling o1.start.\\n: java.io.IOException: disk full"))
    'disk full'
    """
    text = str(error) or type(error).__name__
    in_worker = _PYTHON_ERROR.findall(text) if "Traceback (most recent call last)" in text else []
    if in_worker:
        return str(in_worker[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = [re.sub(r"^[:\s]*(?:[\w$]+\.)+[\w$]+: ", "", lines[1])]  # without the exception's class
    head = _CONDITION.sub("", lines[0]) if lines else text
    return re.sub(r"\s*SQLSTATE: \w+|;?\s*line \d+ pos \d+|;$", "", head).strip()
