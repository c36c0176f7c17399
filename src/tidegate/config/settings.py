"""Every setting: its key, its type, its default, and a description of the values it takes."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from tidegate.errors import DurationError
from tidegate.units import seconds

ENV_PREFIX = "TIDEGATE_"


@dataclass(frozen=True, slots=True)
class Expects:
    """What a key takes, in words for error messages."""

    text: str


def _duration(text: str) -> str:
    seconds(text)
    return text


def _positive_duration(text: str) -> str:
    if seconds(text) <= 0:
        raise DurationError(f"{text!r} is not longer than zero")
    return text


def _positive_duration_or_none(text: str | None) -> str | None:
    return text if text is None else _positive_duration(text)


def _checkpoint(text: str) -> str:
    if any(name not in (None, "pipeline") for _, name, _, _ in string.Formatter().parse(text)):
        raise ValueError("only {pipeline} is known")
    return text


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError("not a power of two")
    return number


def _not_every_address(address: str) -> str:
    if address in ("0.0.0.0", "::"):
        raise ValueError("tasks need one address to connect to")
    return address


_SPAN = "a duration like '4 seconds' or '250 ms'"
Duration = Annotated[str, AfterValidator(_positive_duration), Expects(f"{_SPAN}, more than zero")]
Pause = Annotated[str, AfterValidator(_duration), Expects(_SPAN)]
Count = Annotated[int, Field(ge=1), Expects("a whole number, 1 or more")]
Share = Annotated[float, Field(gt=0, le=1), Expects("a number above 0, at most 1")]
Switch = Annotated[bool, Expects("true or false")]
Memory = Annotated[str, Field(pattern=r"^[1-9]\d*[kmgtKMGT]$"), Expects("a size like '2g' or '512m'")]


class Section(BaseModel):
    """What the sections have in common: values never change, and nothing is converted silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EngineSettings(Section):
    """How batches run."""

    interval: Duration = "1 second"
    """A batch starts this long after the one before it started."""
    parallelism: Annotated[int | None, Field(ge=1), Expects("a whole number, 1 or more, or none")] = None
    """Partitions of a batch; None means as many as Spark has cores."""
    tries: Count = 3
    """How often a batch is tried before the pipeline stops."""
    retry_wait: Pause = "1 second"
    """The pause between two tries."""
    deadline: Annotated[
        str | None, AfterValidator(_positive_duration_or_none), Expects(f"{_SPAN}, more than zero, or none")
    ] = None
    """A Spark job that takes longer is presumed hung: it is cancelled and the batch tried again, with twice
    the time."""
    checkpoint: Annotated[
        str,
        Field(min_length=1),
        AfterValidator(_checkpoint),
        Expects("a folder; {pipeline} in it is the name"),
    ] = ".tidegate/{pipeline}"
    """The folder that a pipeline resumes from; `{pipeline}` stands for its name."""


class AdmissionSettings(Section):
    """How many rows a batch may read."""

    enabled: Switch = True
    target: Share = 0.9
    """The share of the interval that a batch should take."""
    initial_rows: Count = 10_000
    """The limit of the first batch. Unless set, it is adapted to `min_rows` and `max_rows`."""
    min_rows: Count = 100
    max_rows: Count = 50_000_000


class StateSettings(Section):
    """Where keyed steps keep their state."""

    nodes: Count = 2
    """State nodes: processes that hold the key groups."""
    key_groups: Annotated[
        int, Field(ge=1, le=65_536), AfterValidator(_power_of_two), Expects("a power of two up to 65536")
    ] = 256
    """Slices of the key space; a checkpoint keeps the number that it was created with."""
    backend: Annotated[
        Literal["columnar", "rocksdb", "redis", "memory"], Expects("columnar, rocksdb, redis or memory")
    ] = "columnar"
    memory: Memory = "1g"
    """What one node may keep in memory; with `columnar` and `rocksdb` the state may be larger."""
    log: Annotated[str | None, Field(min_length=1), Expects("a folder or an s3:// address, or none")] = None
    """Where the durable log is kept; None puts it into `state` in the checkpoint."""
    durable: Switch = True
    """If false, nothing is logged: state is lost with its node, and no run can resume from the checkpoint."""
    retention: Annotated[int, Field(ge=2), Expects("a whole number, 2 or more")] = 10
    """Committed batches whose state can still be read; files that only older batches need are deleted."""
    timeout: Duration = "10 seconds"
    """A node that does not answer for this long is replaced."""
    bind: Annotated[
        str,
        Field(min_length=1),
        AfterValidator(_not_every_address),
        Expects("one address of this machine, such as 10.0.0.5"),
    ] = "127.0.0.1"
    """The address that nodes listen on. Tasks on other machines must be able to reach it."""
    redis: Annotated[str, Field(min_length=1), Expects("a redis:// address")] = "redis://127.0.0.1:6379/0"
    """The server of the backend `redis`."""
    strategy: Annotated[
        Literal["restart", "eager", "lazy", "hybrid"], Expects("restart, eager, lazy or hybrid")
    ] = "hybrid"
    """How state follows a new route if a rescale does not say."""
    transfer: Annotated[Literal["auto", "peer", "log"], Expects("auto, peer or log")] = "auto"
    """Where a new owner gets state from: the old owner, or the log. `auto` means the log if that is a local
    folder, whose files new owners map into memory as they are."""
    transfer_rate: Memory = "64m"
    """The most that a node fetches in the background during one batch."""


class ControlSettings(Section):
    """How a running pipeline is controlled from outside."""

    enabled: Switch = True
    bind: Annotated[str, Field(min_length=1), Expects("an address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535), Expects("a port, or 0 for any that is free")] = 0


class ClusterSettings(Section):
    """Where Spark's tasks run."""

    provider: Annotated[Literal["auto", "local", "standalone"], Expects("auto, local or standalone")] = "auto"
    """`auto` goes by `spark.master`. Executors of any other kind of cluster are left as they are."""
    workers: Annotated[int, Field(ge=0), Expects("a whole number, 0 or more")] = 0
    """For `local`: processes with one executor each; 0 runs tasks in the driver's JVM."""
    cores: Count = 1
    """Of one executor."""
    memory: Memory = "1g"
    """Of one executor."""


class DeadLettersSettings(Section):
    """Where records that cannot be read go."""

    path: Annotated[str | None, Field(min_length=1), Expects("a folder, or none")] = None
    """None puts them into `dead-letters` in the checkpoint."""


class SparkSettings(Section):
    """The Spark session."""

    master: Annotated[str, Field(min_length=1), Expects("a Spark master like 'local[*]'")] = "local[*]"
    driver_memory: Memory = "2g"
    conf: Annotated[dict[str, str], Expects("Spark settings, text to text")] = {}
    """Spark's own settings, on top of Tidegate's; sources add to it entry by entry."""


class ViewSettings(Section):
    """What is shown while a pipeline runs."""

    mode: Annotated[
        Literal["auto", "live", "lines", "json", "quiet"], Expects("auto, live, lines, json or quiet")
    ] = "auto"
    every: Duration = "3 seconds"
    """How often the `lines` view writes one."""


class Config(BaseModel):
    """The effective configuration of one run.

    >>> Config().engine.interval
    '1 second'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    engine: EngineSettings = EngineSettings()
    admission: AdmissionSettings = AdmissionSettings()
    state: StateSettings = StateSettings()
    control: ControlSettings = ControlSettings()
    cluster: ClusterSettings = ClusterSettings()
    dead_letters: DeadLettersSettings = DeadLettersSettings()
    spark: SparkSettings = SparkSettings()
    view: ViewSettings = ViewSettings()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> Mapping[str, str]:
        """Key -> where its value came from; each entry of `spark.conf` is a key as well."""
        return MappingProxyType(dict.fromkeys(KEYS, "default") | self._origins)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key with its value; the entries of `spark.conf` one by one, when there are any."""
        for key in KEYS.values():
            value = getattr(getattr(self, key.section), key.name)
            if isinstance(value, dict) and value:
                yield from ((f"{key}.{entry}", text) for entry, text in sorted(value.items()))
            else:
                yield str(key), value


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration."""

    section: str
    name: str
    kind: Any
    """Its type, bare of constraints."""
    expects: str

    def __str__(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{ENV_PREFIX}{self.section}_{self.name}".upper()

    def parse(self, text: str) -> Any:
        """The value that a text from the environment or the command line stands for."""
        kinds = get_args(self.kind) if type(None) in get_args(self.kind) else (self.kind,)
        if type(None) in kinds and text.lower() == "none":
            return None
        if bool in kinds:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        for number in (int, float):
            if number in kinds:
                return number(text)
        return json.loads(text) if get_origin(self.kind) is dict else text


SECTIONS: Mapping[str, type[Section]] = {
    name: info.annotation  # type: ignore[misc]
    for name, info in Config.model_fields.items()
}


def _keys() -> dict[str, Key]:
    found = {}
    for section, model in SECTIONS.items():
        for name, info in model.model_fields.items():
            expects = next(note.text for note in info.metadata if isinstance(note, Expects))
            key = Key(section, name, info.annotation, expects)
            found[str(key)] = key
    return found


KEYS: Mapping[str, Key] = MappingProxyType(_keys())
