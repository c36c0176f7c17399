from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.kit import await_that, python, running
from tidegate.errors import ConfigError, LabError
from tidegate.lab import Host, Lab
from tidegate.lab.cgroup import groups_of

pytestmark = pytest.mark.lab

COUNT = """
import os
count = 0
while True:
    count += 1
    os.pwrite(file, b"%12d" % count, 0) if count > 1 else None
    file = os.open("/count", os.O_RDWR | os.O_CREAT) if count == 1 else file
"""
CPU = """
import time
until, before = time.monotonic() + 0.5, time.process_time()
while time.monotonic() < until:
    pass
print(time.process_time() - before)
"""
ENDS_BY_ITSELF = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("on", flush=True)
time.sleep(99)
"""
WRITE = """
import os, sys, time
start = time.monotonic()
with open("/written", "wb") as file:
    file.write(b"x" * int(sys.argv[1]))
    file.flush()
    os.fsync(file.fileno())
print(time.monotonic() - start)
os.unlink("/written")
"""


def test_what_a_host_writes_only_it_sees(lab: Lab, tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.write_text("of the machine")
    python(lab["a"], "import sys; open(sys.argv[1], 'w').write('of a')", str(place))
    assert place.read_text() == "of the machine"
    assert lab["a"].path(place).read_text() == "of a"
    assert python(lab["b"], "import sys; print(open(sys.argv[1]).read())", str(place)) == "of the machine"
    python(lab["a"], "open('/dev/shm/mine', 'w')")
    assert not lab["b"].path("/dev/shm/mine").exists()


def test_a_shared_folder_is_one_for_all(lab: Lab, shared: Path) -> None:
    python(lab["a"], "import sys; open(sys.argv[1], 'w').write('of a')", str(shared / "common"))
    assert (shared / "common").read_text() == "of a"
    assert lab["b"].path(shared / "common").read_text() == "of a"


def test_a_host_sees_its_own_processes_and_has_its_own_name(lab: Lab) -> None:
    numbers = python(lab["a"], "import os; print(*[n for n in os.listdir('/proc') if n.isdigit()])").split()
    assert len(numbers) == 2, "its first process, and the one that asks"
    assert python(lab["a"], "import socket; print(socket.gethostname())") == "a"
    assert python(lab["a"], "import socket; print(socket.gethostbyname('b'))") == lab["b"].address


def test_a_command_runs_in_the_same_folder_with_the_same_output_and_exit_code(lab: Lab) -> None:
    assert python(lab["a"], "import os; print(os.getcwd())") == str(Path.cwd())
    done = lab["a"].run(
        ["sh", "-c", "pwd; echo oops >&2; exit 3"], cwd="/usr", capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("/usr\n", "oops\n", 3)
    missing = lab["a"].run(["no-such-command"], capture_output=True, text=True)
    assert missing.returncode == 127
    assert "no-such-command" in missing.stderr


def test_a_signal_reaches_the_program(lab: Lab) -> None:
    process = running(lab["a"], ENDS_BY_ITSELF)
    assert process.stdout is not None
    with process, process.stdout as said:
        assert said.readline() == b"on\n"
        process.terminate()
        assert process.wait() == 7


def test_a_program_whose_starter_is_killed_ends_too(lab: Lab) -> None:
    program = "import time; print('on', flush=True); time.sleep(4711)"
    process = running(lab["a"], program)
    assert process.stdout is not None
    with process, process.stdout as said:
        said.readline()
        assert lab["a"].processes("4711")
        process.kill()
        await_that(lambda: not lab["a"].processes("4711"), "the program ended")


def test_programs_are_found_by_their_command_line_on_their_host(lab: Lab) -> None:
    with running(lab["a"], "import time; time.sleep(1234)") as process:
        await_that(lambda: lab["a"].processes("sleep(1234)"), "it runs")
        assert not lab["b"].processes("sleep(1234)")
        assert lab["a"].signal(signal.SIGKILL, "sleep(1234)") == 1
        assert process.wait() == -signal.SIGKILL


def test_a_frozen_program_stands_still_and_goes_on(lab: Lab) -> None:
    def counted() -> bytes:
        return lab["a"].path("/count").read_bytes()

    with running(lab["a"], COUNT) as process:
        await_that(lambda: lab["a"].path("/count").exists() and counted(), "it counts")
        lab["a"].freeze()
        stat = Path(f"/proc/{lab['a'].processes('/count')[0]}/stat")
        await_that(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it stands still")
        before = counted()
        python(lab["b"], "import time; time.sleep(0.1)")
        assert counted() == before
        lab["a"].thaw()
        await_that(lambda: counted() != before, "it goes on")
        process.kill()


def test_a_killed_host_comes_back_empty(lab: Lab) -> None:
    python(lab["a"], "open('/kept', 'w')")
    with running(lab["a"], "import time; time.sleep(99)") as process:
        await_that(lambda: lab["a"].processes("sleep(99)"), "it runs")
        lab["a"].kill()
        assert process.wait() == -signal.SIGKILL
    assert not lab["a"].alive
    with pytest.raises(LabError, match="host a is down; boot"):
        python(lab["a"], "")
    lab["a"].kill()
    lab["a"].boot()
    assert not lab["a"].path("/kept").exists()
    first = lab["a"].pid
    lab["a"].boot()
    assert lab["a"].pid == first, "a host that is up stays as it is"


def test_a_host_may_join_later(lab: Lab) -> None:
    assert not lab["late"].alive
    lab.boot("late")
    assert python(lab["late"], "import socket; print(socket.gethostname())") == "late"
    lab["late"].kill()


def throttled(host: Host) -> int:
    """The periods in which the programs of a host have used up their time."""
    stat = next(path for folder in groups_of(host.pid) if (path := folder / "cpu.stat").exists())
    return int(re.findall(r"nr_throttled (\d+)", stat.read_text())[0])


def test_a_limit_of_cpu_time_holds_and_can_be_changed(lab: Lab) -> None:
    lab["a"].limit(cpus=0.5, speed=0.5)
    assert float(python(lab["a"], CPU)) < 0.25
    held_up = throttled(lab["a"])
    assert held_up
    lab["a"].limit(cpus=2.0, speed=1.0)
    python(lab["a"], CPU)
    assert throttled(lab["a"]) <= held_up + 1, "but for the period in which the limit changes"


def test_a_program_that_takes_too_much_memory_is_killed() -> None:
    with Lab({"hosts": {"small": {"memory": "64m"}}}) as lab:
        done = lab["small"].run([sys.executable, "-I", "-S", "-c", "x = b'x' * 200_000_000"], check=False)
        assert done.returncode == -signal.SIGKILL
        lab["small"].limit(memory="1g")
        done = lab["small"].run([sys.executable, "-I", "-S", "-c", "x = b'x' * 200_000_000"], check=False)
        assert done.returncode == 0


def test_a_wrong_limit_is_told_with_what_to_write(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"host.cpus \(argument\): expected a number, 0.05 or more, got 0"):
        lab["a"].limit(cpus=0)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_full_disk_takes_nothing_more_until_it_is_emptied(lab: Lab, name: str) -> None:
    host = lab[name]
    host.fill_disk()
    done = host.run([sys.executable, "-I", "-S", "-c", WRITE, "50000"], stderr=subprocess.PIPE, text=True)
    assert "No space left on device" in done.stderr
    host.empty_disk()
    python(host, WRITE, "50000")


def test_a_slow_disk_takes_its_time(lab: Lab) -> None:
    lab["b"].slow_disk("4m")
    assert float(python(lab["b"], WRITE, "2000000")) > 0.3
    lab["b"].slow_disk(None)
    await_that(lambda: float(python(lab["b"], WRITE, "2000000")) < 0.3, "it is as fast as before")
    with pytest.raises(LabError, match='set disk_in = "file"'):
        lab["a"].slow_disk("4m")
