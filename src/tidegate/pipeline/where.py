"""The line of the user's file that is calling, or that fails."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from tidegate.errors import PipelineError, Where

# Besides the package itself: "<string>" is the constructor that a dataclass writes for itself.
_OURS = (str(Path(__file__).resolve().parents[1]), "<string>")


def caller() -> Where:
    """The innermost frame outside of Tidegate."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    try:
        shown = str(path.relative_to(Path.cwd()))
    except ValueError:
        shown = str(path)
    return Where(shown, frame.f_lineno)


def failing_line(file: str, error: BaseException) -> int | None:
    """The last line of a file that an error passed through; None when there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)


def refused(problem: str, *, step: str) -> PipelineError:
    """The error for what cannot be declared, with the line of the user's file that tries to."""
    return PipelineError(problem, step=step, where=caller())
