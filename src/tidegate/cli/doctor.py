"""`tidegate doctor`: whether this machine has what Tidegate needs, and how to get what is missing."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from tidegate.view.findings import Finding, report

_GIGA = 2**30
_CAP_SYS_ADMIN = 21


def doctor(
    spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark and a Python worker; takes some seconds.")
    ] = False,
) -> None:
    """Check whether this machine can run Tidegate.

    Says how to install what is missing. Exit code 1 if pipelines cannot run without it.
    """
    from rich.console import Console

    checks = [*CHECKS, *([spark_starts] if spark else [])]
    if not report([finding for check in checks for finding in check()], Console()):
        raise typer.Exit(1)


# --- required --------------------------------------------------------------------------------------


def python() -> Iterator[Finding]:
    ok = sys.version_info >= (3, 11)
    found = f"{sys.version.split()[0]} ({sys.executable})"
    yield Finding("Python 3.11 or newer", "required", ok, found, "sudo apt-get install -y python3.11")


def java() -> Iterator[Finding]:
    from tidegate.spark import java

    command, what = java.command(), f"Java {java.OLDEST} or newer"
    try:
        text = java.version()
    except OSError as error:
        yield Finding(what, "required", False, f"{command} does not start ({error})", java.remedy())
        return
    found = f"{text or 'unknown version'} ({shutil.which(command) or command})"
    yield Finding(what, "required", java.is_new_enough(text), found, java.remedy())


def packages() -> Iterator[Finding]:
    """Spark works with a narrow range of each of these, and fails obscurely beyond it."""
    for name, least, below, wanted in (
        ("pyspark", (4, 3), (4, 4), "pyspark==4.3.*"),
        ("pandas", (0,), (3,), "pandas<3"),
        ("pyarrow", (18,), (10_000,), "pyarrow>=18"),
    ):
        try:
            found = version(name)
        except PackageNotFoundError:
            found, ok = "not installed", False
        else:
            ok = least <= tuple(int(part) for part in re.findall(r"\d+", found)) < below
        yield Finding(wanted, "required", ok, found, f"{sys.executable} -m pip install '{wanted}'")


def memory() -> Iterator[Finding]:
    free = available_memory() / _GIGA
    yield Finding(
        "memory, 2 GB free",
        "required",
        free >= 2,
        f"{free:.1f} GB free",
        "stop other programs, or use less: --set spark.driver_memory=1g",
    )


def available_memory() -> int:
    """Bytes that this process can still allocate: what the machine or its control group leaves."""
    limits = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
        if match:
            limits = [int(match[1]) * 1024]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limits.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue  # no such control group, or "max"
    return min(limits)


def disk() -> Iterator[Finding]:
    for what, folder in (("here", Path.cwd()), ("for Spark's scratch files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free / _GIGA
        yield Finding(
            f"disk {what}, 1 GB free",
            "required",
            free >= 1,
            f"{free:.1f} GB free in {folder}",
            "free some space, or put TMPDIR and the checkpoint on another disk",
        )


def ports() -> Iterator[Finding]:
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=5):
                ok, found = True, "can be bound and reached on 127.0.0.1"
    except OSError as error:
        ok, found = False, str(error)
    fix = "allow programs to listen on 127.0.0.1 (sudo ip link set lo up; firewall, sandbox)"
    yield Finding("loopback ports", "required", ok, found, fix)


def host_name() -> Iterator[Finding]:
    """Spark gives its driver the address of the host's name."""
    name = socket.gethostname()
    given = os.environ.get("SPARK_LOCAL_IP")
    try:
        address = given or socket.gethostbyname(name)
    except OSError:
        address = ""
    found = f"{name} is {address}" if address else f"{name} has no address"
    fix = f"export SPARK_LOCAL_IP=127.0.0.1, or: echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts"
    yield Finding("host name", "required", bool(address), found, fix)


_SPARK_TRIAL = """
from tidegate.spark import session
spark = session.start("tidegate-doctor", master="local[1]", driver_memory="512m")
print(spark.range(1000).mapInArrow(lambda batches: batches, "id long").count())
spark.stop()
"""


def spark_starts() -> Iterator[Finding]:
    """In a process of its own: the size of a JVM is settled once per process."""
    began = time.monotonic()
    try:
        trial = subprocess.run(
            [sys.executable, "-c", _SPARK_TRIAL], capture_output=True, text=True, timeout=180, check=False
        )
        ok, wrote = trial.stdout.strip() == "1000", trial.stderr.strip()
    except subprocess.TimeoutExpired:
        ok, wrote = False, "no answer within three minutes"
    taken = f"{time.monotonic() - began:.1f} s for 1000 rows through a Python worker"
    reason = wrote.splitlines()[-1] if wrote else "no answer"
    fix = "the failed checks above first; if there are none, see what Spark wrote:\n" + wrote
    yield Finding("Spark starts", "required", ok, taken if ok else reason, fix)


# --- optional --------------------------------------------------------------------------------------


def cores() -> Iterator[Finding]:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cores, 2 or more", "optional", count >= 2, str(count), "give this machine another core")


def environment() -> Iterator[Finding]:
    """Variables that make Spark take another Python, or another Spark, than this one."""
    from tidegate.spark import python

    problem, found = python.problem(), os.environ.get("PYSPARK_PYTHON", "this Python")
    yield Finding("PYSPARK_PYTHON", "optional", problem is None, problem or found, python.remedy())
    home = os.environ.get("SPARK_HOME")
    ok = home is None or "pyspark" in Path(home).name
    yield Finding("SPARK_HOME", "optional", ok, home or "not set", "unset SPARK_HOME")


def extras() -> Iterator[Finding]:
    for extra, package in (("kafka", "confluent-kafka"), ("postgres", "psycopg")):
        try:
            found, ok = f"{package} {version(package)}", True
        except PackageNotFoundError:
            found, ok = f"{package} is not installed", False
        fix = f"in Tidegate's folder: {sys.executable} -m pip install '.[{extra}]'"
        yield Finding(f"extra {extra!r}", "optional", ok, found, fix)


# --- lab -------------------------------------------------------------------------------------------


def namespaces() -> Iterator[Finding]:
    status = Path("/proc/self/status")
    match = re.search(r"^CapEff:\s+(\w+)", status.read_text(), re.MULTILINE) if status.exists() else None
    ok = bool(match and int(match[1], 16) >> _CAP_SYS_ADMIN & 1)
    found = "may make namespaces" if ok else "may not make namespaces"
    yield Finding("root", "lab", ok, found, "run the lab with sudo (container: --privileged)")


def tun() -> Iterator[Finding]:
    device = Path("/dev/net/tun")
    try:
        with device.open("r+b", buffering=0):
            ok, found = True, "opens"
    except OSError as error:
        ok, found = False, error.strerror or str(error)
    yield Finding(str(device), "lab", ok, found, "sudo modprobe tun, and run the lab with sudo")


def ip_command() -> Iterator[Finding]:
    path = shutil.which("ip")
    yield Finding("ip", "lab", path is not None, path or "not found", "sudo apt-get install -y iproute2")


def real_time() -> Iterator[Finding]:
    """Emulated links are late under load without it. Tried, because rights alone do not tell."""
    try:
        before, priority = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, before, priority)
        ok, found = True, "granted"
    except (OSError, AttributeError) as error:
        ok, found = False, f"refused ({error})"
    fix = "run the lab with sudo (container: --privileged)"
    yield Finding("SCHED_FIFO", "lab", ok, found, fix)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python,
    java,
    packages,
    memory,
    disk,
    ports,
    host_name,
    cores,
    environment,
    extras,
    namespaces,
    tun,
    ip_command,
    real_time,
)
