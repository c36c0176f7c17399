"""A lab as it is declared: hosts, links, what goes wrong. In TOML, or as the same tables in Python."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tidegate.errors import ConfigError
from tidegate.lab.addresses import MOST_HOSTS
from tidegate.lab.link import Link
from tidegate.lab.network import Kind
from tidegate.units import bandwidth, seconds

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?")
_LEAST_CPUS = 0.05
_UNLIMITED = "unlimited"


def _duration(text: str) -> str:
    seconds(text)
    return text


def _longer(text: str) -> str:
    if seconds(text) <= 0:
        raise ValueError("not longer than zero")
    return text


def _bandwidth(text: str) -> str:
    if text != _UNLIMITED and not bandwidth(text):
        raise ValueError("not more than zero")
    return text


_SPAN = "a duration like '12.5 ms' or '10 seconds'"
Span = Annotated[str, AfterValidator(_duration), Field(description=_SPAN)]
LongerSpan = Annotated[str, AfterValidator(_longer), Field(description=f"{_SPAN}, more than zero")]
Share = Annotated[float, Field(ge=0, le=1, description="a number from 0 to 1")]
Size = Annotated[str, Field(pattern=r"^[1-9]\d*[kmgtKMGT]$", description="a size like '2g' or '512m'")]
Rate = Annotated[
    str, AfterValidator(_bandwidth), Field(description="a bandwidth like '100 Mbit', or 'unlimited'")
]
Cpus = Annotated[float, Field(ge=_LEAST_CPUS, description=f"a number, {_LEAST_CPUS} or more")]
Speed = Annotated[float, Field(gt=0, le=1, description="a number above 0, at most 1")]
Count = Annotated[int, Field(ge=1, le=MOST_HOSTS, description=f"a whole number from 1 to {MOST_HOSTS}")]
Switch = Annotated[bool, Field(description="true or false")]


class Section(BaseModel):
    """The description of a field says what it takes, in words for errors; a Literal says so itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class LinkSpec(Section):
    """What links do."""

    delay: Span | None = None
    """One way."""
    jitter: Span | None = None
    """At most so much more or less, evenly spread."""
    loss: Share | None = None
    """The share of packets that are lost."""
    rate: Rate | None = None
    """Per second."""

    def over(self, link: Link) -> Link:
        """The link with what is given here."""
        rate = link.rate
        if self.rate is not None:
            rate = None if self.rate == _UNLIMITED else bandwidth(self.rate)
        return Link(
            delay=link.delay if self.delay is None else seconds(self.delay),
            jitter=link.jitter if self.jitter is None else seconds(self.jitter),
            loss=link.loss if self.loss is None else self.loss,
            rate=rate,
            cut=link.cut,
        )


class HostSpec(LinkSpec):
    """A host. What it says of links is for all that lead to it."""

    cpus: Cpus | None = None
    """How much CPU time all of its processes get together; no limit if left out."""
    speed: Speed = 1.0
    """The share of its CPUs that it really gets, as on a slower machine."""
    memory: Size | None = None
    """What its processes and a disk in memory take together; no limit if left out."""
    disk: Size = "1g"
    """How much it may write."""
    disk_in: Literal["memory", "file"] = "memory"
    """Where that is kept. A disk in a file can be slowed down."""
    up: Switch = True
    """Whether it starts with the lab; if not, `boot` starts it."""
    count: Count | None = None
    """So many hosts of this kind, named `name-1`, `name-2` and so on."""


class PairSpec(LinkSpec):
    """A link from one host to another."""

    source: Annotated[str, Field(alias="from", description="the name of a host")]
    target: Annotated[str, Field(alias="to", description="the name of a host")]


class LabSection(Section):
    """The lab as a whole."""

    links: Kind = "auto"
    """What carries packets: the kernel's netem, a switch in userspace, or whichever there is."""
    seed: Annotated[int, Field(description="a whole number")] = 0
    """What loss, jitter and chaos are drawn from."""
    shared: Annotated[list[str], Field(description="a list of folders")] = []
    """Folders of the machine that all hosts share with it."""


class SparkSection(Section):
    """A cluster of Spark on the hosts."""

    master: Annotated[str, Field(description="the name of a host")]
    workers: Annotated[list[str] | None, Field(description="a list of names of hosts")] = None
    """All hosts but the master's if left out."""
    cores: Annotated[int, Field(ge=1, description="a whole number, 1 or more")] = 1
    """How many tasks a worker runs at a time."""
    memory: Size = "1g"
    """What the executors of a worker take together."""


class StoreSection(Section):
    """An object store on a host."""

    host: Annotated[str, Field(description="the name of a host")]


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab, checked."""

    lab: LabSection
    hosts: Mapping[str, HostSpec]
    links: Sequence[PairSpec]
    chaos: object
    """As declared; `schedule.parse` checks it."""
    spark: SparkSection | None = None
    store: StoreSection | None = None

    def between(self) -> dict[tuple[str, str], Link]:
        """Every link. What leads to a host is as the host says, unless there is an entry for that link."""
        found = {
            (source, target): spec.over(Link())
            for target, spec in self.hosts.items()
            for source in self.hosts
            if source != target
        }
        for pair in self.links:
            found[pair.source, pair.target] = pair.over(found[pair.source, pair.target])
        return found


Checked = TypeVar("Checked", bound=Section)


@dataclass(slots=True)
class Problems:
    """What is wrong with a declaration, a line each."""

    origin: str
    lines: list[str] = field(default_factory=list)

    def add(self, place: str, problem: str) -> None:
        self.lines.append(f"{place} ({self.origin}): {problem}")

    def check(self, model: type[Checked], place: str, values: object) -> Checked | None:
        """The section as the model has it; None if something is wrong with it."""
        if not isinstance(values, Mapping):
            self.add(place, f"expected a table with keys, got {values!r}")
            return None
        try:
            return model.model_validate(dict(values))
        except ValidationError as error:
            found = error.errors()
            for name, kind in {str(each["loc"][0]): each["type"] for each in found if each["loc"]}.items():
                self._tell(model, place, name, kind, values.get(name))
            for each in found:
                if not each["loc"]:
                    self.add(place, each["msg"].removeprefix("Value error, "))
            return None

    def _tell(self, model: type[Section], place: str, name: str, kind: str, value: object) -> None:
        known = {entry.alias or key: entry for key, entry in model.model_fields.items()}
        if name not in known:
            self.add(f"{place}.{name}", f"unknown key{nearest(name, known)}")
            return
        expected = f"expected {_expects(known[name])}"
        self.add(f"{place}.{name}", expected if kind == "missing" else f"{expected}, got {value!r}")

    def tables(self, place: str, values: object) -> list[Mapping[str, Any]]:
        """A list of tables; none if it is something else."""
        if isinstance(values, Sequence) and all(isinstance(value, Mapping) for value in values):
            return list(values)
        self.add(place, f"expected tables, each under [[{place}]]")
        return []

    def end(self) -> None:
        """Raise if there was anything."""
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint which of the known names may be meant."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; choose from {', '.join(known)}"


def _expects(entry: Any) -> str:
    """What a field takes, in words."""
    if entry.description:
        return str(entry.description)
    for part in (entry.annotation, *get_args(entry.annotation)):
        if get_origin(part) is Literal:
            return " or ".join(repr(choice) for choice in get_args(part))
        for note in getattr(part, "__metadata__", ()):
            if getattr(note, "description", None):
                return str(note.description)
    raise AssertionError(f"{entry} says nothing of what it takes")


def changed(section: Checked, **values: object) -> Checked:
    """The section with other values; None keeps what it has."""
    problems = Problems("argument")
    given = {name: value for name, value in values.items() if value is not None}
    now = section.model_dump(by_alias=True, exclude_unset=True) | given
    found = problems.check(type(section), type(section).__name__.removesuffix("Spec").lower(), now)
    problems.end()
    assert found is not None, "what has no problems has a value"
    return found


def read(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def parse(declared: Mapping[str, Any], origin: str = "lab") -> LabSpec:
    """A lab from its tables; all that is wrong is in the one ConfigError, a line each.

    >>> spec = parse({"hosts": {"near": {}, "far": {"delay": "12.5 ms", "count": 2}}})
    >>> links = spec.between()
    >>> list(spec.hosts), links["near", "far-1"].delay, links["far-1", "near"].delay
    (['near', 'far-1', 'far-2'], 0.0125, 0.0)
    """
    problems = Problems(origin)
    tables = {"chaos", "defaults", "hosts", "lab", "links", "spark", "store"}
    for name in sorted(declared.keys() - tables):
        problems.add(name, f"unknown table{nearest(name, tables)}")
    lab = problems.check(LabSection, "lab", declared.get("lab", {})) or LabSection()
    for folder in lab.shared:
        if not Path(folder).is_dir():
            problems.add("lab.shared", f"{folder!r} is not a folder; make it first, or leave it out")
    hosts = _hosts(declared, problems)
    links = []
    for index, values in enumerate(problems.tables("links", declared.get("links", [])), 1):
        pair = problems.check(PairSpec, f"links[{index}]", values)
        if pair is None:
            continue
        known = [_known(f"links[{index}]", end, hosts, problems) for end in (pair.source, pair.target)]
        if pair.source == pair.target:
            problems.add(f"links[{index}]", f"leads from {pair.source} to itself: name two hosts")
        elif all(known):
            links.append(pair)
    spark, store = _spark(declared, hosts, problems), _store(declared, hosts, problems)
    problems.end()
    return LabSpec(
        hosts=hosts, links=links, lab=lab, chaos=declared.get("chaos", []), spark=spark, store=store
    )


def _spark(
    declared: Mapping[str, Any], hosts: Mapping[str, HostSpec], problems: Problems
) -> SparkSection | None:
    if "spark" not in declared:
        return None
    spark = problems.check(SparkSection, "spark", declared["spark"])
    if spark is None:
        return None
    if spark.workers is None:
        spark = changed(spark, workers=[name for name in hosts if name != spark.master])
    for name in spark.workers or ():
        _known("spark.workers", name, hosts, problems)
    _up("spark.master", spark.master, hosts, problems)
    return spark


def _store(
    declared: Mapping[str, Any], hosts: Mapping[str, HostSpec], problems: Problems
) -> StoreSection | None:
    if "store" not in declared:
        return None
    store = problems.check(StoreSection, "store", declared["store"])
    if store is not None:
        _up("store.host", store.host, hosts, problems)
    return store


def _known(place: str, name: str, hosts: Mapping[str, HostSpec], problems: Problems) -> bool:
    if name not in hosts:
        problems.add(place, f"there is no host {name!r}{nearest(name, hosts)}")
    return name in hosts


def _up(place: str, name: str, hosts: Mapping[str, HostSpec], problems: Problems) -> None:
    if _known(place, name, hosts, problems) and not hosts[name].up:
        problems.add(place, f"host {name} does not start with the lab: choose another one")


def _hosts(declared: Mapping[str, Any], problems: Problems) -> dict[str, HostSpec]:
    given, defaults = declared.get("hosts", {}), declared.get("defaults", {})
    if not isinstance(given, Mapping) or not given:
        problems.add("hosts", "expected a table per host, like [hosts.near]")
        return {}
    if problems.check(HostSpec, "defaults", defaults) is None:
        defaults = {}
    hosts: dict[str, HostSpec] = {}
    for name, values in given.items():
        own = {**defaults, **values} if isinstance(values, Mapping) else values
        spec = problems.check(HostSpec, f"hosts.{name}", own)
        names = [f"{name}-{number}" for number in range(1, spec.count + 1)] if spec and spec.count else [name]
        for each in names:
            if not _NAME.fullmatch(each):
                problems.add(f"hosts.{each}", "a name is lower-case letters, digits and '-', a letter first")
            elif each in hosts:
                problems.add(f"hosts.{each}", f"there are two hosts {each}: give one of them another name")
            elif spec is not None:
                hosts[each] = spec
    if len(hosts) > MOST_HOSTS:
        problems.add("hosts", f"{len(hosts)} hosts, more than {MOST_HOSTS}: leave some out")
    return hosts
