"""All tests, in two processes side by side: most of their time they wait for processes that start or end.

The first one prints as it goes, the second one when both are done. Arguments go to both pytests, as in
`scripts/test.py -k savepoint`. Each has a Spark session and servers of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = ("tests/run", "tests/rescale", "tests/soak")
"""Whole runs, many of which are killed: about as long as all the others."""
NO_TESTS = 5
"""How pytest ends when none was selected."""


def command(name: str, *what: str) -> list[str]:
    cache = f"cache_dir=.pytest_cache/{name}"
    return [sys.executable, "-m", "pytest", "--durations=10", "-o", cache, *what, *sys.argv[1:]]


def main() -> int:
    """The worse of both exit codes."""
    log = ROOT / "artifacts" / "test-others.log"
    log.parent.mkdir(exist_ok=True)
    start = time.monotonic()
    others = command("others", "tests", *(f"--ignore={place}" for place in RUNS))
    with (
        log.open("w+", encoding="utf-8") as output,
        subprocess.Popen(others, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT) as second,
    ):
        print(f"[test] the runs; beside them the other tests, in {log.relative_to(ROOT)}", flush=True)
        try:
            first = subprocess.run(command("runs", *RUNS), cwd=ROOT, check=False).returncode
            between = time.monotonic() - start
            print(f"[test] the runs took {between:.0f} s; the others:", flush=True)
            codes = {first, second.wait()}
        except BaseException:
            second.terminate()
            raise
        output.seek(0)
        print(output.read())
    print(f"[test] {time.monotonic() - start:.0f} s")
    return max(codes - {NO_TESTS}, default=NO_TESTS)


if __name__ == "__main__":
    sys.exit(main())
