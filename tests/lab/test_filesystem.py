from __future__ import annotations

from tidegate.lab.filesystem import DISK, ROOT, Mount, folders, mounts

MACHINE = ["/", "/dev", "/dev/pts", "/dev/shm", "/home", "/proc", "/sys", "/sys/fs/cgroup"]


def plan(
    machine: list[str] = MACHINE, *, in_memory: bool = True, shared: tuple[str, ...] = ()
) -> list[Mount]:
    return mounts(machine, disk_bytes=1024, in_memory=in_memory, shared=shared)


def test_mount_points_are_read_parents_first_and_once() -> None:
    lines = [
        "30 1 254:0 / / rw - ext4 /dev/vda rw",
        r"31 30 0:5 / /my\040data rw - ext4 /dev/vdb rw",
        "32 30 0:6 / /dev rw - devtmpfs dev rw",
        "33 30 0:6 / /dev rw - devtmpfs dev rw",
    ]
    assert folders("\n".join(lines)) == ["/", "/dev", "/my data"]


def test_every_file_system_of_the_machine_is_below_one_of_the_host() -> None:
    layers = {mount.target: mount for mount in plan() if mount.kind == "overlay"}
    assert set(layers) == {ROOT, f"{ROOT}/home"}
    assert "lowerdir=/home," in layers[f"{ROOT}/home"].options
    uppers = {part for mount in layers.values() for part in mount.folders}
    assert len(uppers) == 4, "no two may write to the same place"


def test_only_the_root_must_be_there() -> None:
    assert {mount.target: mount.optional for mount in plan() if mount.kind == "overlay"} == {
        ROOT: False,
        f"{ROOT}/home": True,
    }


def test_processes_and_shared_memory_are_the_hosts_own() -> None:
    targets = {mount.target: mount.kind for mount in plan()}
    assert targets[f"{ROOT}/proc"] == "proc"
    assert targets[f"{ROOT}/dev/shm"] == "tmpfs"
    assert targets[f"{ROOT}/dev"] == targets[f"{ROOT}/sys/fs/cgroup"] == ""


def test_what_is_below_comes_first() -> None:
    order = [mount.target for mount in plan(shared=("/home/data",))]
    assert order.index(ROOT) < order.index(f"{ROOT}/home") < order.index(f"{ROOT}/home/data")
    assert order.index(f"{ROOT}/dev") < order.index(f"{ROOT}/dev/pts") < order.index(f"{ROOT}/dev/shm")


def test_the_disk_is_memory_or_a_device() -> None:
    assert Mount("none", "/dev/shm/disk", "tmpfs", "size=1024", folders=("/dev/shm/disk", ROOT)) in plan()
    assert [mount.kind for mount in plan(in_memory=False) if mount.source == DISK] == ["ext4"]


def test_a_place_whose_name_means_something_to_mount_is_left_out() -> None:
    assert not any("odd" in mount.target for mount in plan(["/", "/mnt/odd:name", "/mnt/odd,name"]))
