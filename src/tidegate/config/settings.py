"""Every setting: its key, its type, its default, and a description of the values it takes."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.fields import FieldInfo

from tidegate.errors import DurationError
from tidegate.units import seconds

ENV_PREFIX = "TIDEGATE_"


def _duration(text: str) -> str:
    seconds(text)
    return text


def _positive_duration(text: str) -> str:
    if seconds(text) <= 0:
        raise DurationError(f"{text!r} is not longer than zero")
    return text


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
Duration = Annotated[str, AfterValidator(_positive_duration), Field(description=f"{_SPAN}, more than zero")]
Pause = Annotated[str, AfterValidator(_duration), Field(description=_SPAN)]
Count = Annotated[int, Field(ge=1, description="a whole number, 1 or more")]
Share = Annotated[float, Field(gt=0, le=1, description="a number above 0, at most 1")]
Switch = Annotated[bool, Field(description="true or false")]
Memory = Annotated[str, Field(pattern=r"^[1-9]\d*[kmgtKMGT]$", description="a size like '2g' or '512m'")]
File = Annotated[str | None, Field(min_length=1, description="a file, or none")]


class Section(BaseModel):
    """What the sections have in common: values never change, and nothing is converted silently.

    The description of a field says what it takes, in words for error messages; a Literal says so itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EngineSettings(Section):
    """How batches run."""

    interval: Duration = "1 second"
    """A batch starts this long after the one before it started."""
    parallelism: Annotated[int | None, Field(ge=1, description="a whole number, 1 or more, or none")] = None
    """Partitions of a batch; None means as many as Spark has cores."""
    tries: Count = 3
    """How often a batch is tried before the pipeline stops."""
    retry_wait: Pause = "1 second"
    """The pause between two tries."""
    deadline: Annotated[Duration | None, Field(description=f"{_SPAN}, more than zero, or none")] = None
    """A Spark job that takes longer is presumed hung: it is cancelled and the batch tried again, with twice
    the time."""
    idle: Annotated[Duration | None, Field(description=f"{_SPAN}, more than zero, or none")] = None
    """A source with event time that has been silent for this long does not hold back the watermark. When all
    are silent, everything that is open is closed. None waits for ever."""
    ahead: Annotated[Duration | None, Field(description=f"{_SPAN}, more than zero, or none")] = "1 day"
    """A row whose event time is further ahead of the time at which its batch was planned goes to the dead
    letters, and does not move the watermark. None takes any time."""
    close_at_end: Switch = True
    """Whether `--until-done` closes at its end everything that is open: windows, sessions, joins, timers."""
    checkpoint: Annotated[
        str,
        Field(min_length=1, description="a folder or a URL; {pipeline} in it is the name"),
        AfterValidator(_checkpoint),
    ] = ".tidegate/{pipeline}"
    """The folder or the store that a pipeline resumes from; `{pipeline}` stands for its name."""


class AdmissionSettings(Section):
    """How many rows a batch may read."""

    enabled: Switch = True
    target: Share = 0.9
    """The share of the interval that a batch should take."""
    initial_rows: Count = 10_000
    """The limit of the first batch. Unless set, it is adapted to `min_rows` and `max_rows`."""
    min_rows: Count = 100
    max_rows: Count = 50_000_000
    longest: Duration = "10 seconds"
    """How long a batch may take to work off a backlog, where its fixed cost would fill the interval."""


class StateSettings(Section):
    """Where keyed steps keep their state."""

    provider: Literal["local", "executors", "remote"] = "local"
    """Where nodes run: on the driver's machine, on those of Spark's executors, or on machines where
    `tidegate node` runs."""
    nodes: Count = 2
    """State nodes: processes that hold the key groups."""
    key_groups: Annotated[
        int, Field(ge=1, le=65_536, description="a power of two up to 65536"), AfterValidator(_power_of_two)
    ] = 256
    """Slices of the key space; a checkpoint keeps the number that it was created with."""
    backend: Literal["columnar", "rocksdb", "redis", "memory"] = "columnar"
    memory: Memory = "1g"
    """What one node may keep in memory; with `columnar` and `rocksdb` the state may be larger."""
    log: Annotated[
        str | None,
        Field(min_length=1, description="a folder or an s3:// address, or none"),
    ] = None
    """Where the durable log is kept; None puts it into `state` in the checkpoint."""
    durable: Switch = True
    """If false, nothing is logged: state is lost with its node, and no run can resume from the checkpoint."""
    retention: Annotated[int, Field(ge=2, description="a whole number, 2 or more")] = 10
    """Committed batches whose state can still be read; files that only older batches need are deleted."""
    timeout: Duration = "10 seconds"
    """A node that does not answer for this long is replaced."""
    bind: Annotated[
        Annotated[str, AfterValidator(_not_every_address), Field(min_length=1)] | None,
        Field(description="one address of this machine, such as 10.0.0.5, or none"),
    ] = None
    """The address that nodes listen on, with TLS, for tasks on other machines. None means Unix sockets that
    only this user may open."""
    lease: Duration = "30 seconds"
    """A node on another machine that hears nothing of its driver for this long ends."""
    registry: Annotated[
        str | None,
        Field(min_length=1, description="a folder or an s3:// address, or none"),
    ] = None
    """For `remote`: where machines with `tidegate node` make themselves known."""
    token_file: Annotated[str | None, Field(min_length=1, description="a file, or none")] = None
    """For `remote`: what the driver and those machines share."""
    redis: Annotated[str, Field(min_length=1, description="a redis:// address")] = "redis://127.0.0.1:6379/0"
    """The server of the backend `redis`."""
    strategy: Literal["restart", "eager", "lazy", "hybrid"] = "hybrid"
    """How state follows a new route if a rescale does not say."""
    transfer: Literal["auto", "peer", "log"] = "auto"
    """Where a new owner gets state from: the old owner, or the log. `auto` means the log if that is a local
    folder, whose files new owners map into memory as they are."""
    transfer_rate: Memory = "64m"
    """The most that a node fetches in the background during one batch."""


class ControlSettings(Section):
    """How a running pipeline is controlled from outside."""

    enabled: Switch = True
    bind: Annotated[str, Field(min_length=1, description="an address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535, description="a port, or 0 for any that is free")] = 0
    token_file: File = None
    """The token that requests need; None has each run make its own."""
    scale_by_get: Switch = False
    """Whether `GET /scale?stage=N` adds a state node, for callers that can send nothing else."""


class SecuritySettings(Section):
    """Who may talk to the parts of a pipeline. Files are read by the driver only."""

    tls: Literal["auto", "on", "off"] = "auto"
    """`auto` means on if anything listens on an address: state nodes on any, the control API on one that
    other machines reach. With `off`, whoever can read the network can do what the pipeline can."""
    certificate: File = None
    """PEM, of this pipeline; with `key` and `authority`. None has each run make its own authority."""
    key: File = None
    """Its private key, PEM, without a passphrase, in a file that only its user or a group may read."""
    authority: File = None
    """PEM; both sides of a connection accept certificates signed by it, with the name in `certificate`."""
    spark: Literal["auto", "on", "off"] = "auto"
    """Whether Spark's own processes authenticate each other: `auto` means yes, and with TLS encrypted. An
    existing master at another machine has a secret for that, see `spark_secret_file`."""
    spark_secret_file: File = None
    """The secret that `spark.authenticate.secret` is on an existing master and its workers."""


class ClusterSettings(Section):
    """Where Spark's tasks run."""

    provider: Literal["auto", "local", "standalone"] = "auto"
    """`auto` goes by `spark.master`. Executors of any other kind of cluster are left as they are."""
    workers: Annotated[int, Field(ge=0, description="a whole number, 0 or more")] = 0
    """For `local`: processes with one executor each; 0 runs tasks in the driver's JVM."""
    cores: Count = 1
    """Of one executor."""
    memory: Memory = "1g"
    """Of one executor."""


class DeadLettersSettings(Section):
    """Where records that cannot be read go."""

    path: Annotated[
        str | None, Field(min_length=1, description="a folder or an address like s3://bucket/path, or none")
    ] = None
    """None puts them into `dead-letters` in the checkpoint."""


class SparkSettings(Section):
    """The Spark session."""

    master: Annotated[str, Field(min_length=1, description="a Spark master like 'local[*]'")] = "local[*]"
    driver_memory: Memory = "2g"
    conf: Annotated[dict[str, str], Field(description="Spark settings, text to text")] = {}
    """Spark's own settings, on top of Tidegate's; sources add to it entry by entry."""


class ViewSettings(Section):
    """What is shown while a pipeline runs."""

    mode: Literal["auto", "live", "lines", "json", "quiet"] = "auto"
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
    security: SecuritySettings = SecuritySettings()
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
    field: FieldInfo

    def __str__(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{ENV_PREFIX}{self.section}_{self.name}".upper()

    @property
    def expects(self) -> str:
        """What it takes, in words."""
        if self.field.description:
            return self.field.description
        *others, last = get_args(self.field.annotation)
        return f"{', '.join(others)} or {last}"

    def parse(self, text: str) -> Any:
        """The value that a text from the environment or the command line stands for."""
        kind = self.field.annotation
        kinds = get_args(kind) if type(None) in get_args(kind) else (kind,)
        if type(None) in kinds and text.lower() == "none":
            return None
        if bool in kinds:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        for number in (int, float):
            if number in kinds:
                return number(text)
        return json.loads(text) if get_origin(kind) is dict else text


SECTIONS: Mapping[str, type[Section]] = {
    name: info.annotation  # type: ignore[misc]
    for name, info in Config.model_fields.items()
}
KEYS: Mapping[str, Key] = MappingProxyType(
    {
        f"{section}.{name}": Key(section, name, field)
        for section, model in SECTIONS.items()
        for name, field in model.model_fields.items()
    }
)
