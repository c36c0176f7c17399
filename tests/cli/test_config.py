from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.config import KEYS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def shown(*arguments: str, **environ: str) -> dict[str, dict[str, object]]:
    answer = CliRunner().invoke(app, ["config", "--json", *arguments], env=environ, catch_exceptions=False)
    assert answer.exit_code == 0
    found: dict[str, dict[str, object]] = json.loads(answer.stdout)
    return found


def test_it_shows_every_key() -> None:
    assert list(shown()) == list(KEYS)


def test_it_shows_where_each_value_came_from(folder: Path) -> None:
    (folder / "tidegate.toml").write_text('[engine]\ninterval = "2 seconds"\n')
    (folder / "other.toml").write_text('[engine]\ninterval = "3 seconds"\n')
    values = shown("--set", "spark.conf.spark.x=1", TIDEGATE_ADMISSION_TARGET="0.5")
    assert values["engine.interval"] == {"value": "2 seconds", "origin": "tidegate.toml"}
    assert values["admission.target"] == {"value": 0.5, "origin": "environment TIDEGATE_ADMISSION_TARGET"}
    assert values["spark.conf.spark.x"] == {"value": "1", "origin": "command line"}
    assert values["engine.tries"] == {"value": 3, "origin": "default"}
    assert shown("--config", "other.toml")["engine.interval"]["origin"] == "other.toml"


def test_it_counts_in_what_a_pipeline_sets_for_itself(folder: Path) -> None:
    (folder / "job.py").write_text(
        'import tidegate as tg\np = tg.Pipeline("job", config={"engine": {"tries": 8}})\n'
    )
    assert shown("job.py")["engine.tries"] == {"value": 8, "origin": "pipeline"}


def test_secrets_of_spark_are_not_shown() -> None:
    secrets = ["hadoop.fs.s3a.access.key", "hadoop.fs.s3a.secret.key", "ssl.keyPassword", "x.token"]
    settings = [f"--set=spark.conf.spark.{name}=hunter2" for name in secrets]
    assert {shown(*settings)[f"spark.conf.spark.{name}"]["value"] for name in secrets} == {"***"}
    assert "hunter2" not in CliRunner().invoke(app, ["config", *settings]).stdout


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://:hunter2@example.org/0", "redis://:***@example.org/0"),
        ("rediss://me:hunt@er2:x@example.org:1/0", "rediss://me:***@example.org:1/0"),
        ("redis://example.org/0?password=hunter2&db=1", "redis://example.org/0?password=***&db=1"),
        ("redis://me@example.org/0", "redis://me@example.org/0"),
    ],
)
def test_a_password_in_a_url_is_not_shown(url: str, safe: str) -> None:
    assert shown(TIDEGATE_STATE_REDIS=url)["state.redis"]["value"] == safe
    assert "hunter2" not in CliRunner().invoke(app, ["config"], env={"TIDEGATE_STATE_REDIS": url}).stdout


def test_a_pipe_gets_every_value_whole() -> None:
    folder = "/".join(["a-long-name"] * 20)
    answer = CliRunner().invoke(app, ["config", "--set", f"engine.checkpoint={folder}"])
    assert f" {folder} " in answer.stdout


def test_people_get_a_table() -> None:
    answer = CliRunner().invoke(app, ["config", "--set", "engine.tries=5"])
    (row,) = [line for line in answer.stdout.splitlines() if "engine.tries" in line]
    assert "5" in row
    assert "command line" in row
