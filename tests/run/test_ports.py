"""A run with all that it can open: what strangers are told, and where its secrets are."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from tests.cluster.kit import await_that
from tests.security import ports
from tests.security.kit import write
from tests.security.ports import Port
from tidegate.control.client import ControlClient
from tidegate.errors import ControlError
from tidegate.security.authority import Authority
from tidegate.security.credentials import Credentials

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FLIGHT = ("tidegate.state.node.process", "tidegate.state.supervisor.process")
"""Programs that speak Flight."""
NAME = "ports.tidegate"
PIPELINE = """
import tidegate as tg

p = tg.Pipeline("ports")
counts = p.source(tg.sources.Sensors(sensors=10, rate=100)).key_by("id").aggregate(n=tg.agg.count())
counts.sink(tg.sinks.Discard())
"""
KEY = "spark.hadoop.fs.s3a.secret.key"
SETTINGS = f"""
[cluster]
workers = 2
memory = "512m"

[state]
provider = "executors"

[control]
bind = "127.0.0.6"

[spark]
driver_memory = "512m"
conf = {{ "{KEY}" = "KEY-OF-A-STORE" }}

[security]
certificate = "certificate.pem"
key = "key.pem"
authority = "authority.pem"
"""


@dataclass(frozen=True, slots=True)
class Running:
    """The run while its batches are being processed, and what it has said in the end."""

    folder: Path
    authority: Authority
    ports: frozenset[Port]
    refusals: dict[Port, str | None]
    flights: dict[str, dict[str, str]]
    """What each program told strangers, by what they showed."""
    control: list[str]
    open_sockets: list[str]
    arguments: list[str]
    environment_secrets: frozenset[str]
    files: dict[Path, int]
    """Which files hold a secret, and their modes with those of the folders above, within the run's."""
    said: str


def _flight_strangers(port: Port, authority: Authority) -> dict[str, str]:
    other = Authority.of_run("ports").issue("task")
    late = Authority(NAME, valid=timedelta(hours=-1))
    late._key = authority._key
    elsewhere = Authority("other.tidegate")
    elsewhere._key, elsewhere._certificate = authority._key, authority._certificate
    shown: dict[str, Credentials | None] = {
        "plaintext": None,
        "no certificate": None,
        "another authority": other,
        "a certificate that is over": late.issue("task"),
        "another name": elsewhere.issue("task"),
    }
    found = {}
    for who, credentials in shown.items():
        how: dict[str, Any] = {}
        if who != "plaintext":
            # One that did not verify the node would show no certificate either.
            how = {"tls_root_certs": authority.certificate, "override_hostname": NAME}
        if credentials is not None:
            how |= {"cert_chain": credentials.certificate, "private_key": credentials.key}
        scheme = "grpc" if who == "plaintext" else "grpc+tls"
        options = flight.FlightCallOptions(timeout=10, headers=[(b"authorization", b"Bearer wrong")])
        client = flight.FlightClient(f"{scheme}://{port.host}:{port.number}", **how)
        try:
            found[who] = f"served: {list(client.do_action(flight.Action('status', b''), options))}"
        except flight.FlightError as error:
            found[who] = type(error).__name__
    return found


def _holding(folder: Path, secrets: frozenset[str]) -> dict[Path, int]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or path.name == "key.pem":
            continue
        raw = path.read_bytes()
        if any(secret.encode() in raw for secret in secrets):
            above = [path, *(place for place in path.parents if place.is_relative_to(folder))]
            found[path] = min(stat.S_IMODE(place.stat().st_mode) & 0o077 for place in above[:-1])
    return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ports")
    authority = Authority(NAME)
    _, key, _ = write(folder, authority)
    (folder / "job.py").write_text(PIPELINE)
    (folder / "tidegate.toml").write_text(SETTINGS)
    (folder / "tmp").mkdir()
    mark = f"PORTS_RUN={uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.main", "run", "job.py"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), **dict([mark.split("=")])},
        stdout=(folder / "stdout").open("wb"),
        stderr=subprocess.STDOUT,
    )
    checkpoint = folder / ".tidegate" / "ports"
    try:

        def batches() -> int:
            assert process.poll() is None, (folder / "stdout").read_text()
            try:
                return ControlClient.find(checkpoint).status().batch_id or 0
            except ControlError:
                return 0

        await_that(lambda: batches() > 2, "batches are processed")
        pids = ports.processes(mark)
        found = ports.ports(pids)
        told = json.loads((checkpoint / "control.json").read_text())
        arguments = [ports.command(pid) for pid in pids]
        (properties,) = {
            words.split("--properties-file ")[1].split()[0] for words in arguments if "--prop" in words
        }
        hidden = [line.split()[1] for line in Path(properties).read_text().splitlines() if "ecret" in line]
        secrets = frozenset([told["token"], "KEY-OF-A-STORE", *key.read_text().splitlines()[1:-1], *hidden])
        control = int(told["url"].rpartition(":")[2])
        server = next(port for port in found if port.number == control)
        flights = {name: [port for port in found if name in port.command] for name in FLIGHT}
        known = [server, *(port for each in flights.values() for port in each)]
        opened = ports.open_sockets(pids)
        refusals = ports.refusals(port for port in found if port not in known)
        yield Running(
            folder=folder,
            authority=authority,
            ports=frozenset(found),
            refusals=refusals,
            flights={name: _flight_strangers(there[0], authority) for name, there in flights.items()},
            control=[
                ports.said(server, ports.GET).decode(errors="replace"),
                *(
                    ports.said(server, sent, tls=ports.unverified()).decode()
                    for sent in (ports.GET, ports.STOP)
                ),
            ],
            open_sockets=opened,
            arguments=arguments,
            environment_secrets=secrets,
            files=_holding(folder, secrets),
            said=(folder / "stdout").read_text(),
        )
        assert tidegate_config(folder).count("KEY-OF-A-STORE") == 0
    finally:
        process.terminate()
        process.wait(120)


def tidegate_config(folder: Path) -> str:
    command = [sys.executable, "-m", "tidegate.cli.main", "config", "job.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_every_port_is_known_and_refuses_a_stranger(running: Running) -> None:
    unknown = [
        replace(port, command=port.command[-200:]) for port, how in running.refusals.items() if not how
    ]
    assert unknown == []
    kinds = Counter(str(how).partition(":")[0] for how in running.refusals.values())
    assert kinds["web page"] == 3  # of the master and of two workers
    assert kinds["Py4J"] == 1
    assert kinds["callbacks"] >= 1
    assert kinds["Spark"] >= 7  # the master, two workers, two executors, two of the driver
    assert {port.protocol for port in running.ports} <= {"tcp", "tcp6"}


def test_all_of_them_are_where_they_were_asked_to_be(running: Running) -> None:
    assert {port.host for port in running.ports} == {"127.0.0.1", "127.0.0.6"}


@pytest.mark.parametrize("program", FLIGHT)
def test_state_nodes_and_their_supervisors_refuse_whoever_is_not_of_the_run(
    running: Running, program: str
) -> None:
    refused = {"FlightUnavailableError", "FlightTimedOutError"}
    answers = dict(running.flights[program])
    named = answers.pop("another name")
    assert set(answers.values()) <= refused, answers
    assert named == "FlightUnauthenticatedError"


def test_the_control_api_refuses_whoever_has_no_token(running: Running) -> None:
    plain, *answers = running.control
    assert "HTTP/1.1 2" not in plain
    for answer in answers:
        assert answer.startswith("HTTP/1.1 401"), answer


def test_no_unix_socket_is_open_to_others(running: Running) -> None:
    assert running.open_sockets == []


def test_no_secret_is_where_others_can_read_it(running: Running) -> None:
    for secret in running.environment_secrets:
        assert not any(secret in words for words in running.arguments)
        assert secret not in running.said
    public = {str(path): oct(mode) for path, mode in running.files.items() if mode}
    allowed = {str(running.folder / "tidegate.toml")}  # the user's own
    assert public.keys() - allowed == set()
    assert any(path.name == "control.json" for path in running.files)
