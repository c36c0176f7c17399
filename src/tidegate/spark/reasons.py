"""The one line in a Spark error that a person needs, and whether it is the user's own code that failed."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import LASTING, StepError

_CLASS = r"(?:[A-Za-z_$][\w$]*\.)*[A-Za-z_$][\w$]*"
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_ATTACHED = re.compile(r"\s*SQLSTATE: \w+|;?\s*line \d+ pos \d+|;$")
_PYTHON_ERROR = re.compile(rf"^({_CLASS}(?:Error|Exception|Interrupt|Warning))(?:: (.*))?$", re.MULTILINE)
_JAVA_CALL = re.compile(r"\AAn error occurred while calling .*\n: ")
_JAVA_CAUSE = re.compile(rf"^Caused by: {_CLASS}: (.+)$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"\A(?:[\w$]+\.)+[\w$]+: ")
_LOST_TASK = re.compile(r"\AJob aborted due to stage failure: .*?: Lost task [^()]*\([^()]*\) \([^()]*\): ")
_LOST_QUERY = re.compile(r"\AQuery \S* ?\[id = [^]]*\] terminated with exception: ")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)
_CALLED_FROM = re.compile(r"was called from\s+(\S+:\d+)")
_STEP_ERROR = f"{StepError.__module__}.{StepError.__name__}"
_OURS = str(Path(__file__).resolve().parents[1])

# What Spark raises when an expression meets a value that it cannot work on: SQLSTATE class 22, "data
# exception", and raise_error(). Kafka's connector has the class 22 for messages that are gone.
_OF_EXPRESSIONS = (
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "DateTimeException",
    "NumberFormatException",
    "SparkRuntimeException",
)
_DATA_EXCEPTION = re.compile(r"SQLSTATE: (?:22\w{3}|P0001)\b")

# A sign in the text of an error, and what to do about it.
_REMEDIES = tuple(
    (re.compile(sign), remedy)
    for sign, remedy in (
        (
            r"No space left on device|Disk quota exceeded",
            "free some space, or put the checkpoint, the output and Spark's scratch files (TMPDIR) on a "
            "larger disk",
        ),
        (
            r"PYTHON_VERSION_MISMATCH|PACKAGE_NOT_INSTALLED"
            r"|No module named '(?:numpy|pandas|pyarrow|pyspark|tidegate)\b",
            "Spark's workers run another Python than the driver: unset PYSPARK_PYTHON, or set it to "
            f"{sys.executable} and see that every machine has that Python with the same packages",
        ),
        (
            r"Python worker failed to connect back",
            "no Python worker of Spark starts, and its standard error says why: see that every machine has "
            f"{sys.executable}, or what PYSPARK_PYTHON names, with the same packages",
        ),
        (
            r"Timed out waiting for a node assignment|Failed to construct kafka|No resolvable bootstrap",
            "no Kafka broker answers: start it, or correct bootstrap=",
        ),
        (
            r"Java heap space|GC overhead limit exceeded",
            "give Spark more memory with spark.driver_memory, or let a batch take fewer rows with "
            "admission.max_rows",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """An error of the user's own code that is sure to come again."""

    reason: str
    expression: str = ""
    """The part of a SQL expression that failed; empty for anything else."""


def reason(error: BaseException) -> str:
    """Why it failed and, where that is known, what to do: the Python error of a worker where there is one,
    else what Spark says first and what Java says last.

    >>> reason(RuntimeError("[NOT_FOUND] There is no valu. SQLSTATE: 42703; line 1 pos 0;\\n'Filter"))
    'There is no valu.'
    >>> reason(RuntimeError("An error occurred while calling o1.x.\\n: java.io.IOException: no such disk"))
    'no such disk'
    """
    text = str(error) or type(error).__name__
    told = _of_worker(text) or _of_java(text)
    for sign, remedy in _REMEDIES:
        if sign.search(text) and remedy not in told:
            return f"{told.rstrip('.')}; {remedy}"
    return told


def mistake(error: BaseException) -> Mistake | None:
    """What is wrong with the user's own code; None when it may be anything else, which may pass."""
    for each in _chain(error):
        text, kind = str(each), type(each).__name__
        if isinstance(each, StepError):
            return Mistake(text)
        if kind == "PythonException" and _is_of_function(text):
            return Mistake(_with_place(reason(each), _of_user(text)))
        if kind in _OF_EXPRESSIONS and _DATA_EXCEPTION.search(text):
            called = _CALLED_FROM.search(text)
            return Mistake(_with_place(reason(each), called[1] if called else ""), _fragment(text))
    return None


def _of_worker(text: str) -> str:
    """The last line of a Python traceback, of a StepError just its text; empty when there is none."""
    if "Traceback (most recent call last)" not in text:
        return ""
    found = list(_PYTHON_ERROR.finditer(text))
    if not found:
        return ""
    kind, said = found[-1].groups()
    return str(said) if kind == _STEP_ERROR else found[-1][0]


def _of_java(text: str) -> str:
    """What is said first and last in an error of Java."""
    lines = _JAVA_CALL.sub("", text).splitlines()
    first = _without_wrapping(next((line for line in lines if line.strip()), text))
    causes = [_without_wrapping(cause) for cause in _JAVA_CAUSE.findall(text)]
    last = causes[-1] if causes else ""
    return first if not last or last in first or first in last else f"{first.rstrip('.')}: {last}"


def _without_wrapping(line: str) -> str:
    """What a line says, without the classes, conditions and jobs around it."""
    line, before = line.strip(), ""
    while line != before:
        before = line
        for wrapping in (_JAVA_CLASS, _CONDITION, _LOST_TASK, _LOST_QUERY):
            line = wrapping.sub("", line)
    return _ATTACHED.sub("", line).strip()


def _is_of_function(text: str) -> bool:
    """Whether the traceback of a worker is one that a function of the user's gives each time."""
    errors = _PYTHON_ERROR.findall(text)
    if not errors:
        return False
    kind, frames = errors[-1][0], _FRAME.findall(text)
    if kind == _STEP_ERROR:
        return True
    # Where our own code is on the way, it may be a node that does not answer.
    ours = any(file.startswith(_OURS) or "/site-packages/tidegate/" in file for file, _ in frames)
    known = getattr(builtins, kind, None)
    return bool(frames) and not ours and isinstance(known, type) and issubclass(known, LASTING)


def _of_user(text: str) -> str:
    """The last line of a user's file in a traceback; empty where the error names it, or there is none."""
    files = [f"{file}:{line}" for file, line in _FRAME.findall(text) if "/site-packages/" not in file]
    return "" if not files or _STEP_ERROR in text else files[-1]


def _with_place(told: str, place: str) -> str:
    return f"{told.rstrip('.')} (in {place})" if place else told


def _fragment(text: str) -> str:
    """The marked part of the SQL text that Spark shows.

    >>> _fragment("no\\n== SQL (line 1, position 5) ==\\n1 + cast(a as int)\\n    ^^^^^^^^^^^^^^\\n")
    'cast(a as int)'
    """
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip() and not line.replace("^", "").strip() and number > 0:
            start, stop = line.index("^"), len(line.rstrip())
            return lines[number - 1][start:stop]
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
