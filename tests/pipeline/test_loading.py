"""A pipeline is found in the file that declares it, and loading runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import PipelineError
from tidegate.pipeline.loading import load

ONE = """
import tidegate as tg
p = tg.Pipeline("one")
p.source(tg.sources.Sensors(sensors=1, rate=1)).sink(tg.sinks.Discard())
"""
TWO = ONE + 'q = tg.Pipeline("two")\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pipe.py"


def test_the_only_one(file: Path) -> None:
    file.write_text(ONE)
    assert load(str(file)).name == "one"


def test_a_call_of_run_runs_nothing_and_ends_the_loading(file: Path) -> None:
    file.write_text(TWO + "p.run()\nraise SystemExit('went on')\n")
    assert load(str(file)).name == "one"


@pytest.mark.parametrize("name", ["two", "q"])
def test_by_name_of_pipeline_or_variable(file: Path, name: str) -> None:
    file.write_text(TWO)
    assert load(f"{file}:{name}").name == "two"


def test_several_need_a_name(file: Path) -> None:
    file.write_text(TWO)
    with pytest.raises(PipelineError, match="2 pipelines"):
        load(str(file))


def test_none_at_all(file: Path) -> None:
    file.write_text("x = 1\n")
    with pytest.raises(PipelineError, match=r"pipe\.py declares no pipeline"):
        load(str(file))


def test_wrong_syntax_is_told_with_its_line_once(file: Path) -> None:
    file.write_text("x = 1\nx = = 2\n")
    with pytest.raises(PipelineError) as caught:
        load(str(file))
    assert str(caught.value) == f"the file failed: SyntaxError: invalid syntax (declared at {file}:2)"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("tg.sinks.File('out')", "has no attribute 'File'; did you mean 'Files'?"),
        (
            "stream.join(stream)",
            "a stream has no 'join'; did you mean 'broadcast_join' or 'interval_join' or 'window_join'?",
        ),
        ("stream.sink_it()", "a stream has no 'sink_it'; did you mean 'sink'?"),
        ("stream.xyz()", "a stream has no 'xyz' "),
        (
            "stream.key_by('id').agregate()",
            "has no 'agregate'; did you mean 'aggregate'?",
        ),
        (
            "stream.key_by('id').window(tg.tumbling('1 s')).count()",
            "a window has no 'count', only .aggregate",
        ),
    ],
)
def test_a_wrong_name_is_told_with_those_that_may_be_meant(file: Path, code: str, problem: str) -> None:
    source = "stream = tg.Pipeline('p').source(tg.sources.Sensors())"
    file.write_text(f"import tidegate as tg\n{source}\n{code}\n")
    with pytest.raises(PipelineError) as caught:
        load(str(file))
    assert problem in str(caught.value)
    assert "pipe.py:3)" in str(caught.value)


def test_wrong_syntax_in_another_module_is_told_with_its_place(file: Path) -> None:
    (file.parent / "wrong_beside_the_pipeline.py").write_text("\n\n\nx = = 2\n")
    file.write_text("import wrong_beside_the_pipeline\n")
    with pytest.raises(PipelineError, match=r"wrong_beside_the_pipeline\.py, line 4.*pipe\.py:1"):
        load(str(file))


def test_an_unknown_name_lists_the_known(file: Path) -> None:
    file.write_text(TWO)
    with pytest.raises(PipelineError, match=r"no pipeline 'three'.*'one', 'two'"):
        load(f"{file}:three")


def test_no_file() -> None:
    with pytest.raises(PipelineError, match="no file"):
        load("nowhere.py")


@pytest.mark.parametrize("broken", ["import tidegate\nx = 1 / 0\n", "x = 1\nx = = 2\n"])
def test_a_file_that_fails_names_the_line(file: Path, broken: str) -> None:
    file.write_text(broken)
    with pytest.raises(PipelineError) as caught:
        load(str(file))
    assert caught.value.where is not None
    assert caught.value.where.line == 2


def test_modules_beside_the_file_can_be_imported(file: Path) -> None:
    (file.parent / "beside_the_pipeline.py").write_text("NAME = 'beside'\n")
    file.write_text(
        ONE.replace('"one"', "NAME").replace("import", "from beside_the_pipeline import NAME\nimport", 1)
    )
    assert load(str(file)).name == "beside"
