"""Values from code, file, environment and command line, and all that is wrong with them."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.config.settings import ENV_PREFIX, KEYS, SECTIONS, AdmissionSettings, Config
from tidegate.errors import ConfigError

ENV_FILE = "TIDEGATE_CONFIG"
"""Names the configuration file."""
_NO_KEYS = frozenset({ENV_FILE, "TIDEGATE_FAULTS"})
"""Variables with the prefix that are not keys. Fault points are planned for a whole process tree."""
DEFAULT_FILE = "tidegate.toml"
_CONF = "spark.conf"


@dataclass(slots=True)
class _Loading:
    """Values as they come in, source after source, and all that is wrong with them."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def take(self, name: str, value: Any, origin: str, *, text: bool = False) -> None:
        """One key from one source; `text` says that the value still has to be parsed."""
        if name.startswith(f"{_CONF}.") and name not in KEYS:
            name, value, text = _CONF, {name.removeprefix(f"{_CONF}."): value}, False
        key = KEYS.get(name)
        if key is None:
            self.problems.append(f"{name} ({origin}): unknown key{_nearest(name)}")
            return
        try:
            given = {key.name: key.parse(value) if text else value}
            checked = getattr(SECTIONS[key.section].model_validate(given), key.name)
        except (ValueError, KeyError):  # pydantic's and DurationError are ValueErrors
            self.problems.append(f"{name} ({origin}): expected {key.expects}, got {_described(value)}")
            return
        if name == _CONF:
            self.values[name] = self.values.get(name, {}) | checked
            self.origins.update({f"{name}.{entry}": origin for entry in checked})
        else:
            self.values[name] = checked
        self.origins[name] = origin

    def take_sections(self, sections: Mapping[str, Any], origin: str) -> None:
        """Section -> key -> value, as a file or a pipeline gives them."""
        for section, values in sections.items():
            if isinstance(values, Mapping):
                for name, value in values.items():
                    self.take(f"{section}.{name}", value, origin)
            elif section in SECTIONS:
                got = _described(values)
                self.problems.append(f"{section} ({origin}): expected a section with keys, got {got}")
            else:
                self.problems.append(f"{section} ({origin}): unknown key{_nearest(section)}")

    def take_environment(self, environ: Mapping[str, str]) -> None:
        variables = {key.variable: name for name, key in KEYS.items()}
        for variable in sorted(environ):
            if variable in variables:
                self.take(variables[variable], environ[variable], f"environment {variable}", text=True)
            elif variable.startswith(ENV_PREFIX) and variable not in _NO_KEYS:
                near = difflib.get_close_matches(variable, variables, n=1)
                self.problems.append(f"{variable} (environment): unknown variable{_hint(near)}")

    def settle_rows(self) -> None:
        """Relate the three row limits; only values that someone set can contradict each other."""
        built_in = AdmissionSettings()
        low, first, high = (
            self.values.get(f"admission.{name}", getattr(built_in, name))
            for name in ("min_rows", "initial_rows", "max_rows")
        )
        named = {
            name: self.origins.get(f"admission.{name}", "default") for name in AdmissionSettings.model_fields
        }
        if low > high:
            self.problems.append(
                f"admission.min_rows ({named['min_rows']}): {low} is more than"
                f" admission.max_rows, {high} ({named['max_rows']})"
            )
        elif "admission.initial_rows" not in self.values:
            self.values["admission.initial_rows"] = min(max(first, low), high)
        elif not low <= first <= high:
            self.problems.append(
                f"admission.initial_rows ({named['initial_rows']}): {first} is not between"
                f" admission.min_rows, {low} ({named['min_rows']}), and"
                f" admission.max_rows, {high} ({named['max_rows']})"
            )

    def config(self) -> Config:
        self.settle_rows()
        if self.problems:
            raise ConfigError("\n".join(self.problems))
        nested: dict[str, dict[str, Any]] = {}
        for name, value in self.values.items():
            key = KEYS[name]
            nested.setdefault(key.section, {})[key.name] = value
        config = Config.model_validate(nested)
        config._origins.update(self.origins)
        return config


def load(
    *,
    code: Mapping[str, Any] | None = None,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """The effective configuration.

    `code` is section -> key -> value, as in the file. `file` must exist when given; without it,
    TIDEGATE_CONFIG names the file, or `tidegate.toml` is taken if the current folder has one.
    `overrides` are dotted keys of the command line, whose texts are parsed as the key demands.
    All that is wrong, wherever it came from, is in the one ConfigError, a line each.

    >>> config = load(environ={"TIDEGATE_ENGINE_TRIES": "5"}, overrides={"view.mode": "json"})
    >>> config.engine.tries, config.origins["engine.tries"]
    (5, 'environment TIDEGATE_ENGINE_TRIES')
    >>> load(environ={}, overrides={"admission.traget": "0.8"})
    Traceback (most recent call last):
    tidegate.errors.ConfigError: admission.traget (command line): unknown key; did you mean admission.target?
    """
    loading = _Loading()
    loading.take_sections(code or {}, "pipeline")
    path = _file(file, environ)
    if path is not None:
        loading.take_sections(_read(path), str(path))
    loading.take_environment(environ)
    for name, value in (overrides or {}).items():
        loading.take(name, value, "command line", text=isinstance(value, str))
    return loading.config()


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """`section.key=value` of the command line, as `overrides` of `load`.

    >>> parse_settings(["engine.tries=5", "spark.conf.spark.x=a=b"])
    {'engine.tries': '5', 'spark.conf.spark.x': 'a=b'}
    """
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: write it as section.key=value, like engine.tries=5")
        parsed[name.strip()] = value.strip()
    return parsed


def _file(given: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    named = given if given is not None else environ.get(ENV_FILE)
    if named is None:
        default = Path(DEFAULT_FILE)
        return default if default.is_file() else None
    path = Path(named)
    if not path.is_file():
        by = "--config" if given is not None else f"environment {ENV_FILE}"
        raise ConfigError(f"{path} ({by}): no such configuration file")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            sections = tomllib.load(stream)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    spark = sections.get("spark")
    if isinstance(spark, dict) and isinstance(spark.get("conf"), dict):
        # TOML reads `spark.x.y = "1"` as tables within tables unless the key is quoted.
        spark["conf"] = dict(_flat(spark["conf"]))
    return sections


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _described(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as every source but Python writes it
    kinds = {int: "the number", float: "the number", str: "the text", dict: "the table", list: "the list"}
    return f"{kinds.get(type(value), type(value).__name__)} {value!r}"


def _nearest(name: str) -> str:
    """A hint: the key of that very name in another section, else the one most like it."""
    last = name.rpartition(".")[2]
    names = {key.name: str(key) for key in KEYS.values()}
    near = [names[last]] if last in names else difflib.get_close_matches(name, KEYS, n=1)
    if not near:
        near = [names[match] for match in difflib.get_close_matches(last, names, n=1)]
    return _hint(near)


def _hint(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else "; `tidegate config` lists the keys"
