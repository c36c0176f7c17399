from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import LabError
from tidegate.lab.cgroup import Cgroups, names, parse

FIRST = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
SECOND = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
CPU, MEMORY = Path("/sys/fs/cgroup/cpu,cpuacct/g"), Path("/sys/fs/cgroup/memory/g")
ONE = Path("/sys/fs/cgroup/g")


def test_version_1_has_a_folder_per_controller() -> None:
    found = parse(FIRST, "")
    assert found.version == 1
    assert found.folders("g") == [CPU, MEMORY]
    assert found.cpu("g", 0.5) == [(CPU / "cpu.cfs_period_us", "20000"), (CPU / "cpu.cfs_quota_us", "10000")]
    assert found.cpu("g", None)[1] == (CPU / "cpu.cfs_quota_us", "-1")
    assert found.memory("g", 1024) == [(MEMORY / "memory.limit_in_bytes", "1024")]


def test_version_2_has_one_for_all() -> None:
    found = parse(SECOND, "cpu io memory pids")
    assert found.version == 2
    assert found.folders("g") == [ONE]
    assert found.cpu("g", 1.5) == [(ONE / "cpu.max", "30000 20000")]
    assert found.cpu("g", None) == [(ONE / "cpu.max", "max 20000")]
    assert found.memory("g", None) == [(ONE / "memory.max", "max")]
    assert found.disk("g", "7:0", 1000) == [(ONE / "io.max", "7:0 rbps=1000 wbps=1000")]
    assert found.disk("g", "7:0", None) == [(ONE / "io.max", "7:0 rbps=max wbps=max")]


def test_the_version_that_has_the_controllers_is_taken() -> None:
    assert parse(FIRST, "hugetlb").version == 1


def test_a_limit_without_its_controller_is_refused_with_what_to_do() -> None:
    with pytest.raises(LabError, match="'blkio' cannot be used here: leave the limit out"):
        parse(FIRST, "").disk("g", "7:0", 1)
    with pytest.raises(LabError, match=r"'cpu' cannot be used here: .* with --cgroupns=host"):
        Cgroups(2, {}, occupied=True).cpu("g", 0.5)


def test_groups_of_labs_are_known_by_the_end_of_their_path() -> None:
    within, around = "4:cpu:/tidegate-lab-1-near", "2:memory:/docker/4f3a/tidegate-lab-1-near"
    assert names(f"{within}\n{around}\n0::/docker/4f3a\n1:name=systemd:/\n") == {"tidegate-lab-1-near"}
