from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tidegate.config import KEYS, Config, load, parse_settings
from tidegate.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in its own folder, so that no tidegate.toml of the machine is found."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "tidegate.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def problems(**sources: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(**{"environ": {}, **sources})
    return str(raised.value).splitlines()


def test_without_any_source_every_value_is_the_default() -> None:
    config = load(environ={})
    assert config == Config()
    assert set(config.origins.values()) == {"default"}
    assert set(config.origins) == set(KEYS)


def test_a_later_source_wins_over_an_earlier_one() -> None:
    sources: list[tuple[dict[str, Any], int, str]] = [
        ({"code": {"engine": {"tries": 4}}}, 4, "pipeline"),
        ({"file": write("[engine]\ntries = 5\n", "my.toml")}, 5, "my.toml"),
        ({"environ": {"TIDEGATE_ENGINE_TRIES": "6"}}, 6, "environment TIDEGATE_ENGINE_TRIES"),
        ({"overrides": {"engine.tries": "7"}}, 7, "command line"),
    ]
    given: dict[str, Any] = {"environ": {}}
    for more, tries, origin in sources:
        given.update(more)
        config = load(**given)
        assert config.engine.tries == tries
        assert config.origins["engine.tries"] == origin


def test_a_source_leaves_alone_what_it_does_not_name() -> None:
    write("[engine]\ntries = 5\n")
    config = load(code={"engine": {"interval": "2 seconds"}}, environ={})
    assert (config.engine.tries, config.engine.interval) == (5, "2 seconds")
    assert config.origins["engine.interval"] == "pipeline"
    assert config.origins["engine.retry_wait"] == "default"


def test_the_file_is_found_in_the_current_folder_by_variable_or_by_argument() -> None:
    write("[engine]\ntries = 1\n")
    write("[engine]\ntries = 2\n", "b.toml")
    write("[engine]\ntries = 3\n", "c.toml")
    assert load(environ={}).engine.tries == 1
    assert load(environ={"TIDEGATE_CONFIG": "b.toml"}).engine.tries == 2
    config = load(file="c.toml", environ={"TIDEGATE_CONFIG": "b.toml"})
    assert (config.engine.tries, config.origins["engine.tries"]) == (3, "c.toml")


def test_a_named_file_must_exist() -> None:
    assert problems(file="no.toml") == ["no.toml (--config): no such configuration file"]
    assert problems(environ={"TIDEGATE_CONFIG": "no.toml"}) == [
        "no.toml (environment TIDEGATE_CONFIG): no such configuration file"
    ]


def test_a_file_that_is_not_toml_says_where() -> None:
    write("[engine\n")
    (line,) = problems()
    assert line.startswith("tidegate.toml: not TOML: ")
    assert "line 1" in line


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("admission.traget", "admission.target"),
        ("enigne.interval", "engine.interval"),
        ("engine.target", "admission.target"),
        ("deadletters.path", "dead_letters.path"),
    ],
)
def test_an_unknown_key_names_its_origin_and_the_nearest_key(name: str, nearest: str) -> None:
    section, _, key = name.partition(".")
    expected = f"{name} (%s): unknown key; did you mean {nearest}?"
    assert problems(code={section: {key: 1}}) == [expected % "pipeline"]
    assert problems(overrides={name: "1"}) == [expected % "command line"]
    assert problems(file=write(f"[{section}]\n{key} = 1\n")) == [expected % "tidegate.toml"]


def test_an_unknown_key_like_no_other_points_to_the_list() -> None:
    assert problems(overrides={"zzz.qqq": "1"}) == [
        "zzz.qqq (command line): unknown key; `tidegate config` lists the keys"
    ]


def test_an_unknown_variable_suggests_the_nearest_one() -> None:
    assert problems(environ={"TIDEGATE_ADMISION_TARGET": "1", "OTHER": "1"}) == [
        "TIDEGATE_ADMISION_TARGET (environment): unknown variable; did you mean TIDEGATE_ADMISSION_TARGET?"
    ]


def test_a_section_must_be_a_section() -> None:
    assert problems(code={"engine": 3}) == [
        "engine (pipeline): expected a section with keys, got the number 3"
    ]
    assert problems(file=write("interval = 3\n")) == [
        "interval (tidegate.toml): unknown key; did you mean engine.interval?"
    ]


@pytest.mark.parametrize(
    ("key", "value", "expected", "got"),
    [
        ("engine.tries", "many", "a whole number, 1 or more", "the text 'many'"),
        ("engine.tries", 2.5, "a whole number, 1 or more", "the number 2.5"),
        ("engine.tries", 0, "a whole number, 1 or more", "the number 0"),
        ("engine.parallelism", 0, "a whole number, 1 or more, or none", "the number 0"),
        ("engine.interval", "4 lightyears", "a duration like '4 seconds' or '250 ms', more than zero", None),
        ("engine.interval", "0 seconds", "a duration like '4 seconds' or '250 ms', more than zero", None),
        ("engine.interval", 4, "a duration like '4 seconds' or '250 ms', more than zero", "the number 4"),
        ("engine.checkpoint", "x/{name}", "a folder or a URL; {pipeline} in it is the name", None),
        ("admission.target", 1.5, "a number above 0, at most 1", "the number 1.5"),
        ("admission.enabled", "yes", "true or false", "the text 'yes'"),
        ("engine.tries", True, "a whole number, 1 or more", "true"),
        ("dead_letters.path", 5, "a folder or an address like s3://bucket/path, or none", "the number 5"),
        (
            "state.bind",
            "0.0.0.0",
            "one address of this machine, such as 10.0.0.5, or none",
            "the text '0.0.0.0'",
        ),
        ("spark.driver_memory", "lots", "a size like '2g' or '512m'", "the text 'lots'"),
        ("spark.conf", {"spark.x": 1}, "Spark settings, text to text", "the table {'spark.x': 1}"),
        ("view.mode", "loud", "auto, live, lines, json or quiet", "the text 'loud'"),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_what_came(
    key: str, value: object, expected: str, got: str | None
) -> None:
    section, _, name = key.partition(".")
    got = got or f"the text {value!r}"
    assert problems(code={section: {name: value}}) == [f"{key} (pipeline): expected {expected}, got {got}"]


def test_a_wrong_text_names_the_variable_it_came_from() -> None:
    assert problems(environ={"TIDEGATE_ADMISSION_TARGET": "high"}) == [
        "admission.target (environment TIDEGATE_ADMISSION_TARGET):"
        " expected a number above 0, at most 1, got the text 'high'"
    ]


def test_all_problems_of_a_load_are_reported_together() -> None:
    write("[engine]\ninterval = 5\nspeed = 1\n")
    found = problems(
        code={"admission": {"target": 2}},
        environ={"TIDEGATE_VIEW_MODE": "loud"},
        overrides={"engine.interval": "1 second", "engine.tires": "3"},
    )
    assert [line.partition(":")[0] for line in found] == [
        "admission.target (pipeline)",
        "engine.interval (tidegate.toml)",
        "engine.speed (tidegate.toml)",
        "view.mode (environment TIDEGATE_VIEW_MODE)",
        "engine.tires (command line)",
    ]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("admission.enabled", "false", False),
        ("admission.enabled", "1", True),
        ("admission.target", "1", 1.0),
        ("admission.max_rows", "1_000_000", 1_000_000),
        ("engine.parallelism", "none", None),
        ("engine.parallelism", "8", 8),
        ("dead_letters.path", "None", None),
        ("spark.conf", '{"spark.x": "1"}', {"spark.x": "1"}),
    ],
)
def test_texts_are_parsed_as_the_key_demands(key: str, text: str, value: object) -> None:
    section, _, name = key.partition(".")
    for config in (
        load(environ={f"TIDEGATE_{section}_{name}".upper(): text}),
        load(environ={}, overrides={key: text}),
    ):
        assert getattr(getattr(config, section), name) == value


def test_spark_settings_of_all_sources_come_together() -> None:
    write('[spark.conf]\nspark.a.b = "file"\n"spark.c" = "file"\n')
    config = load(
        code={"spark": {"conf": {"spark.a.b": "code", "spark.d": "code"}}},
        environ={},
        overrides=parse_settings(["spark.conf.spark.c=x=y"]),
    )
    assert config.spark.conf == {"spark.a.b": "file", "spark.c": "x=y", "spark.d": "code"}
    origins = {entry: config.origins[f"spark.conf.{entry}"] for entry in config.spark.conf}
    assert origins == {"spark.a.b": "tidegate.toml", "spark.c": "command line", "spark.d": "pipeline"}
    assert ("spark.conf.spark.c", "x=y") in list(config.items())


def test_the_first_limit_follows_the_bounds_unless_it_was_set() -> None:
    assert load(environ={}, overrides={"admission.max_rows": "500"}).admission.initial_rows == 500
    assert problems(overrides={"admission.max_rows": "500", "admission.initial_rows": "600"}) == [
        "admission.initial_rows (command line): 600 is not between admission.min_rows, 100 (default),"
        " and admission.max_rows, 500 (command line)"
    ]
    assert problems(overrides={"admission.max_rows": "50"}) == [
        "admission.min_rows (default): 100 is more than admission.max_rows, 50 (command line)"
    ]


def test_settings_need_an_equals_sign() -> None:
    with pytest.raises(ConfigError, match=r"--set engine\.tries: write it as section\.key=value"):
        parse_settings(["engine.tries"])


def test_a_configuration_never_changes() -> None:
    config = load(environ={})
    with pytest.raises(ValidationError, match="frozen"):
        config.engine.tries = 9
    with pytest.raises(TypeError):
        config.origins["engine.tries"] = "me"  # type: ignore[index]
