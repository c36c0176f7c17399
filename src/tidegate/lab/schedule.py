"""Chaos: what goes wrong, and when. As declared, and as the actions that follow from it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tidegate.lab import spec
from tidegate.lab.spec import HostSpec, LongerSpan, Problems, Section, Share, Size, Span, nearest
from tidegate.units import seconds

STORE = "the store"
_HOSTS = "the name of a host, or a list of names to draw from"
Hosts = Annotated[str | list[str], Field(description=_HOSTS)]
Text = Annotated[str, Field(min_length=1, description="a part of a command line")]


class Event(Section):
    """Something that goes wrong once or again and again."""

    at: Annotated[Span | None, Field(description="a duration like '10 seconds'")] = None
    """Once, so long after the start."""
    every: Annotated[
        LongerSpan | Annotated[list[LongerSpan], Field(min_length=2, max_length=2)] | None,
        Field(description="a duration like '10 seconds', or two to draw from between them"),
    ] = None
    """Again and again, with such pauses from one to the next."""
    lasts: Annotated[
        LongerSpan | None, Field(alias="for", description="a duration like '5 seconds', more than zero")
    ] = None
    """It is undone after so long; if left out, never."""

    @model_validator(mode="after")
    def _one_time(self) -> Event:
        if (self.at is None) == (self.every is None):
            raise ValueError('say when: either at = "10 seconds" or every = "10 seconds"')
        if isinstance(self.every, list) and seconds(self.every[0]) > seconds(self.every[1]):
            raise ValueError("the first of every must not be longer than the second")
        return self

    @property
    def hosts(self) -> Sequence[str]:
        """Whom it may befall."""
        return [STORE]


class HostEvent(Event):
    """Something that goes wrong on a host, or with its links."""

    host: Hosts
    """Of several, one each time."""

    @property
    def hosts(self) -> Sequence[str]:
        return [self.host] if isinstance(self.host, str) else self.host


class Kill(HostEvent):
    """A host dies, and is back with an empty disk after `for`; or programs on it are killed."""

    do: Literal["kill"]
    process: Annotated[Text | None, Field(description="a part of a command line")] = None

    @model_validator(mode="after")
    def _no_return(self) -> Kill:
        if self.process is not None and self.lasts is not None:
            raise ValueError("a killed program does not come back by itself: leave `for` out")
        return self


class Freeze(HostEvent):
    """The programs of a host, or some of them, stand still."""

    do: Literal["freeze"]
    process: Annotated[Text | None, Field(description="a part of a command line")] = None


class Partition(HostEvent):
    """A host is cut off from others, in one direction or both."""

    do: Literal["partition"]
    others: Annotated[
        list[str] | None, Field(alias="from", description="a list of names of hosts; all others if left out")
    ] = None
    one_way: Annotated[Literal["in", "out"] | None, Field(description="'in' or 'out'")] = None
    """Only what comes to the host is lost, or only what it sends."""


class Delay(HostEvent):
    """What comes to a host takes longer."""

    do: Literal["delay"]
    delay: Span


class DiskFull(HostEvent):
    """A host can write nothing more."""

    do: Literal["disk-full"]


class SlowDisk(HostEvent):
    """The disk of a host, which must be in a file, reads and writes so many bytes per second."""

    do: Literal["slow-disk"]
    rate: Size


class StoreSlow(Event):
    """The store takes its time until it begins with a request."""

    do: Literal["store-slow"]
    delay: LongerSpan


class StoreErrors(Event):
    """The store answers requests by 503."""

    do: Literal["store-errors"]
    share: Share = 1.0


class StoreAway(Event):
    """The store breaks off every connection."""

    do: Literal["store-away"]


KINDS: Mapping[str, type[Event]] = {
    "kill": Kill,
    "freeze": Freeze,
    "partition": Partition,
    "delay": Delay,
    "disk-full": DiskFull,
    "slow-disk": SlowDisk,
    "store-slow": StoreSlow,
    "store-errors": StoreErrors,
    "store-away": StoreAway,
}


def parse(
    declared: object, hosts: Mapping[str, HostSpec], origin: str = "chaos", *, store: bool = False
) -> list[Event]:
    """The events of a schedule, for hosts with or without a store; all that is wrong is in the one
    ConfigError, a line each.

    >>> parse([{"do": "kil", "host": "far", "at": "1 s"}], {"far": HostSpec()})
    Traceback (most recent call last):
    tidegate.errors.ConfigError: chaos[1].do (chaos): there is no 'kil'; did you mean kill?
    """
    problems = Problems(origin)
    events = []
    for index, values in enumerate(problems.tables("chaos", declared), 1):
        place = f"chaos[{index}]"
        what = values.get("do")
        kind = KINDS.get(str(what))
        if kind is None:
            problem = "is missing" if what is None else f"there is no {what!r}"
            problems.add(f"{place}.do", f"{problem}{nearest(str(what), KINDS)}")
            continue
        event = problems.check(kind, place, values)
        if event is None:
            continue
        if not isinstance(event, HostEvent):
            if not store:
                problems.add(place, 'there is no store: declare it, like [store] with host = "near"')
            events.append(event)
            continue
        _check_hosts(event, place, hosts, problems)
        events.append(event)
    problems.end()
    return events


def _check_hosts(event: HostEvent, place: str, hosts: Mapping[str, HostSpec], problems: Problems) -> None:
    chosen, others = set(event.hosts), set(event.others or ()) if isinstance(event, Partition) else set()
    for name in sorted((chosen | others) - hosts.keys()):
        problems.add(place, f"there is no host {name!r}{nearest(name, hosts)}")
    if not chosen:
        problems.add(f"{place}.host", f"expected {_HOSTS}, got an empty list")
    for name in sorted(chosen & others):
        problems.add(f"{place}.from", f"{name} cannot be cut off from itself: leave it out")
    for name in sorted(chosen & hosts.keys()) if isinstance(event, SlowDisk) else ():
        if hosts[name].disk_in == "memory":
            problems.add(place, f'the disk of host {name} is memory: set disk_in = "file" to slow it down')


def read(path: str | Path, hosts: Mapping[str, HostSpec], *, store: bool = False) -> list[Event]:
    """The events in a file of its own."""
    tables = spec.read(path)
    problems = Problems(str(path))
    for name in sorted(tables.keys() - {"chaos"}):
        problems.add(name, "unknown table; a schedule has [[chaos]] tables only")
    problems.end()
    return parse(tables.get("chaos", []), hosts, str(path), store=store)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    at: float
    """Seconds after the start."""
    event: Event
    host: str
    """Or the store."""
    number: tuple[int, int]
    """Which event, and which time; the same for the action that undoes it."""
    undo: bool = False


def actions(events: Sequence[Event], seed: int) -> Iterator[Action]:
    """All that is to be done, in order of time. It has no end if an event happens again and again.

    >>> frozen = Freeze.model_validate({"do": "freeze", "host": "a", "every": "4 s", "for": "1 s"})
    >>> plan = actions([frozen], seed=1)
    >>> [(action.at, action.undo) for action in (next(plan), next(plan), next(plan))]
    [(4.0, False), (5.0, True), (8.0, False)]
    """
    streams = []
    for index, event in enumerate(events):
        streams.append(_happens(event, index, seed))
        if event.lasts is not None:
            # Drawn alike, so that each is undone where it was done.
            streams.append(_ends(_happens(event, index, seed), seconds(event.lasts)))
    return heapq.merge(*streams, key=lambda action: action.at)


def _happens(event: Event, index: int, seed: int) -> Iterator[Action]:
    chance = Random(f"{seed} {index}")
    if event.at is not None:
        yield Action(seconds(event.at), event, chance.choice(event.hosts), (index, 0))
        return
    assert event.every is not None, "an event has a time"
    low, high = (event.every, event.every) if isinstance(event.every, str) else event.every
    at, time = 0.0, 0
    while True:
        at += chance.uniform(seconds(low), seconds(high))
        yield Action(at, event, chance.choice(event.hosts), (index, time))
        time += 1


def _ends(happening: Iterator[Action], lasts: float) -> Iterator[Action]:
    for begun in happening:
        yield Action(begun.at + lasts, begun.event, begun.host, begun.number, undo=True)
