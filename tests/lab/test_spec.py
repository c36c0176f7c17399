from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import ConfigError
from tidegate.lab import schedule, spec
from tidegate.lab.link import Link


def problems(declared: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        spec.parse(declared, "lab.toml")
    return str(raised.value).splitlines()


def test_a_delay_is_of_what_comes_to_a_host() -> None:
    links = spec.parse(
        {"hosts": {"near": {}, "a": {"delay": "12.5 ms"}, "b": {"delay": "12.5 ms"}}}
    ).between()
    assert {pair: link.delay for pair, link in links.items() if pair[1] == "near"} == {
        ("a", "near"): 0.0,
        ("b", "near"): 0.0,
    }
    assert links["near", "a"] == links["b", "a"] == Link(delay=0.0125)
    # Two of them are twice as far from each other, there and back, as from one without.
    assert links["a", "b"].delay + links["b", "a"].delay == 2 * (
        links["a", "near"].delay + links["near", "a"].delay
    )


def test_an_entry_for_one_link_changes_what_it_names() -> None:
    declared = {
        "hosts": {"a": {}, "b": {"delay": "10 ms", "rate": "1 Gbit"}},
        "links": [{"from": "a", "to": "b", "delay": "20 ms", "loss": 0.5}],
    }
    links = spec.parse(declared).between()
    assert links["a", "b"] == Link(delay=0.02, loss=0.5, rate=10**9)
    assert links["b", "a"] == Link()


def test_defaults_are_for_every_host_that_does_not_say_otherwise() -> None:
    hosts = spec.parse({"defaults": {"cpus": 2, "disk": "2g"}, "hosts": {"a": {}, "b": {"cpus": 0.5}}}).hosts
    assert (hosts["a"].cpus, hosts["b"].cpus, hosts["b"].disk) == (2, 0.5, "2g")


def test_a_count_makes_several() -> None:
    assert list(spec.parse({"hosts": {"w": {"count": 3}}}).hosts) == ["w-1", "w-2", "w-3"]


def test_every_problem_is_told_with_what_to_write() -> None:
    told = problems(
        {
            "host": {},
            "lab": {"links": "tc", "shared": ["/no/such/folder"]},
            "hosts": {
                "a": {"dely": "1 ms", "loss": 2, "cpus": True},
                "b": {"delay": 12, "disk": "big", "rate": "10 MB"},
                "Far away": {},
                "c": 4,
            },
            "links": [{"from": "a"}],
        }
    )
    assert told == [
        "host (lab.toml): unknown table; did you mean hosts?",
        "lab.links (lab.toml): expected 'auto' or 'switch' or 'netem', got 'tc'",
        "hosts.a.loss (lab.toml): expected a number from 0 to 1, got 2",
        "hosts.a.cpus (lab.toml): expected a number, 0.05 or more, got True",
        "hosts.a.dely (lab.toml): unknown key; did you mean delay?",
        "hosts.b.delay (lab.toml): expected a duration like '12.5 ms' or '10 seconds', got 12",
        "hosts.b.rate (lab.toml): expected a bandwidth like '100 Mbit', or 'unlimited', got '10 MB'",
        "hosts.b.disk (lab.toml): expected a size like '2g' or '512m', got 'big'",
        "hosts.Far away (lab.toml): a name is lower-case letters, digits and '-', a letter first",
        "hosts.c (lab.toml): expected a table with keys, got 4",
        "links[1].to (lab.toml): expected the name of a host",
    ]


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({}, "hosts (lab.toml): expected a table per host, like [hosts.near]"),
        (
            {"hosts": {"a": {}, "b": {}}, "links": [{"from": "a", "to": "c"}]},
            "links[1] (lab.toml): there is no host 'c'; choose from a, b",
        ),
        (
            {"hosts": {"a": {}}, "links": [{"from": "a", "to": "a"}]},
            "links[1] (lab.toml): leads from a to itself: name two hosts",
        ),
        (
            {"hosts": {"a-1": {}, "a": {"count": 1}}},
            "hosts.a-1 (lab.toml): there are two hosts a-1: give one of them another name",
        ),
        (
            {"hosts": {"a": {}}, "lab": {"shared": ["/no/such/folder"]}},
            "lab.shared (lab.toml): '/no/such/folder' is not a folder; make it first, or leave it out",
        ),
        (
            {"hosts": {"a": {"count": 250}, "b": {}}},
            "hosts (lab.toml): 251 hosts, more than 250: leave some out",
        ),
        (
            {"hosts": {"a": {}}, "links": {"from": "a"}},
            "links (lab.toml): expected tables, each under [[links]]",
        ),
        (
            {"hosts": {"a": {}}, "defaults": {"cpus": 0}},
            "defaults.cpus (lab.toml): expected a number, 0.05 or more, got 0",
        ),
    ],
)
def test_a_problem_is_told_once(declared: dict[str, Any], told: str) -> None:
    assert problems(declared) == [told]


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        spec.read(file)
    file.write_text("hosts = [")
    with pytest.raises(ConfigError, match=r"lab.toml: not TOML"):
        spec.read(file)


def test_a_change_keeps_what_it_does_not_name() -> None:
    link = spec.LinkSpec(delay="5 ms").over(Link(loss=0.1, cut=True))
    assert link == Link(delay=0.005, loss=0.1, cut=True)
    assert spec.LinkSpec(rate="unlimited").over(Link(rate=5)) == spec.LinkSpec().over(Link()) == Link()
    with pytest.raises(
        ConfigError, match=r"host.speed \(argument\): expected a number above 0, at most 1, got 3"
    ):
        spec.changed(spec.HostSpec(), speed=3)


def test_the_examples_are_right() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "how-to" / "lab.md").read_text()
    shown = tomllib.loads(page.partition("```toml\n")[2].partition("```")[0])
    for declared in (shown, spec.read(root / "examples" / "lab.toml")):
        lab = spec.parse(declared)
        assert list(lab.hosts) == ["near", "far-1", "far-2"]
        assert schedule.parse(lab.chaos, lab.hosts)


def test_the_page_names_every_key_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "lab.md").read_text()
    sections = (spec.LabSection, spec.HostSpec, spec.PairSpec, spec.SparkSection, spec.StoreSection)
    fields = {name: entry for section in sections for name, entry in section.model_fields.items()}
    assert not [name for name, entry in fields.items() if f"`{entry.alias or name}`" not in page]
    assert not [kind for kind in schedule.KINDS if f"| `{kind}` |" not in page]


def test_spark_has_workers_on_all_hosts_but_the_masters_unless_they_are_named() -> None:
    hosts = {"near": {}, "far": {"count": 2}, "late": {"up": False}}
    spark = spec.parse({"hosts": hosts, "spark": {"master": "near"}}).spark
    assert spark is not None
    assert spark.workers == ["far-1", "far-2", "late"]
    named = spec.parse({"hosts": hosts, "spark": {"master": "near", "workers": ["near"]}}).spark
    assert named is not None
    assert named.workers == ["near"]
    assert problems({"hosts": hosts, "spark": {"master": "nera", "workers": ["far"], "cores": 0}}) == [
        "spark.cores (lab.toml): expected a whole number, 1 or more, got 0",
    ]
    assert problems({"hosts": hosts, "spark": {"master": "nera", "workers": ["far"]}}) == [
        "spark.workers (lab.toml): there is no host 'far'; did you mean far-2?",
        "spark.master (lab.toml): there is no host 'nera'; did you mean near?",
    ]


def test_a_service_is_on_a_host_that_starts_with_the_lab() -> None:
    hosts = {"near": {}, "late": {"up": False}}
    assert spec.parse({"hosts": hosts, "store": {"host": "near"}}).store == spec.StoreSection(host="near")
    assert problems({"hosts": hosts, "store": {"host": "late"}, "spark": {"master": "late"}}) == [
        "spark.master (lab.toml): host late does not start with the lab: choose another one",
        "store.host (lab.toml): host late does not start with the lab: choose another one",
    ]
