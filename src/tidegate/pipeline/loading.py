"""Pipelines out of the files that declare them."""

from __future__ import annotations

import importlib.util
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from tidegate.errors import PipelineError, TidegateError, Where
from tidegate.pipeline.pipeline import Pipeline, RunRequested, declared
from tidegate.pipeline.where import failing_line


def load(target: str) -> Pipeline:
    """The pipeline of `FILE` or `FILE:NAME`.

    NAME is the name of the pipeline or of the variable that holds it. Without NAME it is the one whose
    `run` the file calls, else the only one it declares. A call of `run` ends the loading and runs nothing.
    """
    file, name = _split(target)
    path = Path(file)
    if not path.is_file():
        raise PipelineError(f"there is no file {file!r}")
    pipelines: list[Pipeline] = []
    token = declared.set(pipelines)
    asked: Pipeline | None = None
    module = _module(path)
    try:
        assert module.__spec__ is not None
        assert module.__spec__.loader is not None
        module.__spec__.loader.exec_module(module)
    except RunRequested as request:
        asked = request.pipeline
    except TidegateError:
        raise
    except Exception as error:
        # The text of a SyntaxError ends in the line, which the place tells as well.
        text = error.msg if _wrong_syntax(error, path) else error
        raise PipelineError(
            f"the file failed: {type(error).__name__}: {text}{_meant(error)}", where=_line_in(path, error)
        ) from error
    finally:
        declared.reset(token)
        # Workers cannot import it: with the name gone, its functions are sent to them whole.
        del sys.modules[module.__name__]
    return _choose(file, name, pipelines, asked, module)


def _split(target: str) -> tuple[str, str | None]:
    file, colon, name = target.rpartition(":")
    return (file, name) if colon and file.endswith(".py") else (target, None)


def _module(path: Path) -> ModuleType:
    name = f"tidegate_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None:
        raise PipelineError(f"{str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As with `python FILE`: modules beside the file can be imported, here and in local workers.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    return module


def _choose(
    file: str, name: str | None, pipelines: list[Pipeline], asked: Pipeline | None, module: ModuleType
) -> Pipeline:
    if name is not None:
        held = getattr(module, name, None)
        found = [p for p in pipelines if p.name == name or p is held]
        if found:
            return found[0]
    elif asked is not None:
        return asked
    elif len(pipelines) == 1:
        return pipelines[0]
    names = ", ".join(repr(p.name) for p in pipelines) or "none"
    if name is not None:
        raise PipelineError(f"{file} declares no pipeline {name!r}; it declares: {names}")
    if not pipelines:
        raise PipelineError(f'{file} declares no pipeline; declare one with tg.Pipeline("name")')
    raise PipelineError(f"{file} declares {len(pipelines)} pipelines ({names}); say which, as {file}:NAME")


def _wrong_syntax(error: Exception, path: Path) -> TypeGuard[SyntaxError]:
    """Whether it is the file itself, and no module that it imports, that is no Python."""
    return isinstance(error, SyntaxError) and error.filename == str(path.resolve())


def _meant(error: Exception) -> str:
    """Which names may be meant by one that does not exist."""
    if not isinstance(error, AttributeError) or error.name is None or error.obj is None:
        return ""
    names = [name for name in dir(error.obj) if not name.startswith("_")]
    alike = [name for name in names if error.name in name.split("_")]
    alike = alike or get_close_matches(error.name, names, n=1)
    return f"; did you mean {' or '.join(map(repr, alike))}?" if alike else ""


def _line_in(path: Path, error: Exception) -> Where:
    if _wrong_syntax(error, path):
        return Where(str(path), error.lineno or 1)
    return Where(str(path), failing_line(str(path.resolve()), error) or 1)
