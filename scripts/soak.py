"""Everything that takes long: the long forms of the tests, and both simulations by the ten thousand.

Three stages run at a time, the longest ones first, and one that fails does not keep the others from running.
What a stage prints is in artifacts/soak-STAGE.log. Ends with a table of what each did; artifacts/soak.json
holds the same. Names of stages as arguments run only those.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
ARTIFACTS = ROOT / "artifacts"
AT_A_TIME = 3
"""Stages: some wait for much of their time."""
MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes that have to be free there."""


@dataclass
class Stage:
    """What a stage did."""

    name: str
    seconds: float = 0.0
    passed: bool = False
    figures: dict[str, object] = field(default_factory=dict)


Work = Callable[[Stage], bool]


def marked(*what: str, in_memory: bool = False) -> Work:
    """Tests that are marked `soak`; their properties become figures."""

    def work(stage: Stage) -> bool:
        scratch = MEMORY if in_memory and _is_roomy(MEMORY) else None
        with TemporaryDirectory(prefix="tidegate-soak-", dir=scratch) as folder:
            results = Path(folder) / "results.xml"
            command = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "-o", "junit_family=xunit1", *what]
            command += [f"--junitxml={results}", f"--basetemp={folder}/tests"]
            command += ["-o", f"cache_dir=.pytest_cache/soak-{stage.name}"]
            with log_of(stage).open("w") as log:
                done = subprocess.run(command, cwd=ROOT, check=False, stdout=log, stderr=subprocess.STDOUT)
            stage.figures |= _properties(results)
        return done.returncode == 0

    return work


def simulation(name: str, seeds: int) -> Work:
    """`tidegate sim`, in one process."""

    def work(stage: Stage) -> bool:
        command = [sys.executable, "-m", "tidegate.cli.main", "sim", name, "--json"]
        command += ["--seeds", str(seeds), "--jobs", "1"]
        with log_of(stage).open("w") as log:
            done = subprocess.run(
                command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=log, text=True
            )
        stage.figures |= json.loads(done.stdout or "{}")
        return done.returncode == 0

    return work


def log_of(stage: Stage) -> Path:
    return ARTIFACTS / f"soak-{stage.name}.log"


def _is_roomy(place: Path) -> bool:
    return place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOM


def _properties(results: Path) -> dict[str, object]:
    """What the tests recorded, as JSON; numbers of several tests under one name are added up."""
    figures: dict[str, object] = {}
    if not results.exists():
        return figures
    cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    figures["tests"] = len(cases)
    for case in cases:
        for found in case.iter("property"):
            name, text = found.attrib["name"], found.attrib["value"]
            value, known = json.loads(text), figures.get(name)
            if isinstance(known, int | float) and isinstance(value, int | float):
                figures[name] = known + value
            elif known is not None:
                figures[f"{name} ({case.attrib['name']})"] = value
            else:
                figures[name] = value
    return figures


def stages(seeds: int, batches: int) -> Mapping[str, Work]:
    """By name, the longest ones first."""
    files = {
        "chaos": "tests/run/test_chaos.py",
        "faults": "tests/run/test_faults.py",
        "rescales": "tests/soak/test_rescales.py",
        "kills": "tests/run/test_kill.py",
    }
    through_nodes = "tests/soak/test_batches.py"
    elsewhere = [f"--ignore={file}" for file in (*files.values(), through_nodes)]
    return {
        # In memory: it is about what piles up, and a disk's fsync would be half of its time.
        "batches": marked(through_nodes, f"--batches={batches}", in_memory=True),
        "rescale": simulation("rescale", seeds),
        "protocol": simulation("protocol", seeds),
        **{name: marked(file) for name, file in files.items()},
        "others": marked("tests", *elsewhere),
    }


def shown(value: object) -> str:
    """Short enough for a table."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(part)}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def say(what: str) -> None:
    # In one piece: another stage may be saying something.
    sys.stdout.write(f"[soak] {what}\n")
    sys.stdout.flush()


def carried_out(name: str, work: Work) -> Stage:
    say(f"{name} begins")
    stage, start = Stage(name), time.monotonic()
    stage.passed = work(stage)
    stage.seconds = round(time.monotonic() - start, 1)
    ended = "passed" if stage.passed else f"FAILED, see {log_of(stage).relative_to(ROOT)}"
    say(f"{name} {ended} after {stage.seconds:,.0f} s")
    return stage


def table(done: Sequence[Stage], seconds: float) -> str:
    """A line per stage and its figures below."""
    lines = ["", f"{'stage':<12}{'':<8}{'seconds':>9}"]
    for stage in done:
        lines.append(f"{stage.name:<12}{'passed' if stage.passed else 'FAILED':<8}{stage.seconds:>9,.0f}")
        lines += [f"    {name}: {shown(value)}" for name, value in stage.figures.items() if value]
    failed = [stage.name for stage in done if not stage.passed]
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    lines += ["", f"soak: {seconds / 60:.0f} minutes, {verdict}"]
    return "\n".join(lines)


def main() -> int:
    """1 if a stage failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="stages to run; all of them unless told otherwise")
    parser.add_argument("--seeds", type=int, default=10_000, help="of each simulation")
    parser.add_argument("--batches", type=int, default=100_000, help="through real state nodes")
    given = parser.parse_args()
    known = stages(given.seeds, given.batches)
    if unknown := set(given.only) - set(known):
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    began, done = time.monotonic(), list[Stage]()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    ARTIFACTS.mkdir(exist_ok=True)
    with ThreadPoolExecutor(AT_A_TIME) as lanes:
        for ended in as_completed(
            [lanes.submit(carried_out, name, known[name]) for name in given.only or known]
        ):
            done.append(ended.result())
            # After each one, so that a soak that is cut short has left what it found.
            report = {"began": date, "stages": [asdict(stage) for stage in done]}
            (ARTIFACTS / "soak.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table(done, time.monotonic() - began))
    return 0 if all(stage.passed for stage in done) else 1


if __name__ == "__main__":
    sys.exit(main())
