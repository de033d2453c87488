"""A root file system to work in: what its programs see, and that nothing of it outlives them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from railwright.image import inside, tarball
from railwright.image.inside import Room
from railwright.image.stages import bench
from railwright.node.model import InputError

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not sys.platform.startswith("linux"),
    reason="files on a node belong to root, so writing them needs root",
)
PROGRAMS = ("sh", "cat", "chmod", "ls", "readlink", "sleep")


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A tree of a few programs and their libraries, with a kernel's folder."""
    tree = tmp_path / "tree"
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for source in (program, *re.findall(r"(/\S+) \(0x", listed)):
            place = tree / (f"bin/{name}" if source == program else source.lstrip("/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(source), place)
    (tree / "lib/modules/6.12.1-image").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    return Room(tree, tmp_path / "scratch", 1790000000)


def mounted(tree: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text("utf-8").splitlines() if str(tree) in line]


def test_a_program_of_the_tree_sees_one_cpu_its_own_kernel_and_nothing_of_this_machine(room: Room) -> None:
    asked = (
        "cat /proc/cmdline /proc/modules /proc/swaps /proc/sys/kernel/osrelease /proc/sys/kernel/hostname;"
        "ls /sys/bus/pci/devices;"
        "ls /sys/devices/system/cpu; echo $SOURCE_DATE_EPOCH; ls /dev"
    )
    out = room.run("sh", "-c", asked).decode().split()
    assert out[:5] == ["6.12.1-image", "localhost", "cpu0", "online", "1790000000"]
    assert set(out[5:]) == {
        "disk", "fd", "full", "null", "pts", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero",
    }  # fmt: skip
    assert mounted(room.tree) == []


def test_a_program_of_the_tree_has_few_rights_no_network_and_no_way_to_this_machines_kernel(
    room: Room,
) -> None:
    setting = Path("/proc/sys/kernel/core_pattern")
    before = setting.read_text("ascii")
    asked = (
        "cat /proc/self/status; echo; cat /proc/net/dev; cat /proc/self/cgroup;"
        "(echo railwright > /proc/sys/kernel/core_pattern) 2>&1; (echo 3 > /proc/sys/vm/drop_caches) 2>&1;"
        "ls /proc/1/root/; cat /proc/self/mountinfo; exit 0"
    )
    status, _, rest = room.run("sh", "-c", asked).decode().partition("\n\n")
    sets = dict(re.findall(r"(Cap\w+):\t(\w+)", status))
    # What Docker gives a container, 00000000a80425fb, without MKNOD (bit 27) and NET_RAW (bit 13).
    assert {int(sets[name], 16) for name in ("CapBnd", "CapEff", "CapPrm")} == {
        0xA80425FB - (1 << 27) - (1 << 13)
    }
    assert re.findall(r"^ *(\w+): +\d+ +\d+ ", rest, re.M) == ["lo"]
    assert rest.count("Read-only file system") == 2
    assert setting.read_text("ascii") == before
    # Of this machine's root and of what is mounted on it nothing is in sight: the first mount is the tree.
    mounts = [line.split() for line in rest.splitlines() if re.match(r"\d+ \d+ \d+:\d+ ", line)]
    assert [row[4] for row in mounts].count("/") == 1
    assert {row[4].split("/")[1] for row in mounts} == {"", "dev", "proc", "sys", "run", "tmp"}


def test_a_device_of_this_machine_is_written_to_and_keeps_its_mode(room: Room) -> None:
    mode = Path("/dev/null").stat().st_mode & 0o7777
    out = room.run(
        "sh", "-c", f"echo gone > /dev/null && echo written; chmod {mode:o} /dev/null 2>&1; exit 0"
    ).decode()
    assert out.startswith("written\n")
    assert "Read-only file system" in out


@pytest.mark.parametrize("link", [None, "../run/systemd/resolve/stub-resolv.conf"])
def test_a_program_has_a_copy_of_this_machines_resolver_where_it_has_a_network_and_nowhere_else(
    link: str | None, room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "resolv.conf"
    own.write_text("nameserver 192.0.2.1\n", "ascii")
    monkeypatch.setattr(inside, "_RESOLVER", own)
    (room.tree / "etc").mkdir(exist_ok=True)
    place = room.tree / "etc/resolv.conf"
    if link is None:
        place.write_text("# the image's\n", "ascii")
    else:
        place.symlink_to(link)
    asked = "cat /etc/resolv.conf; echo changed > /etc/resolv.conf"
    assert room.run("sh", "-c", asked, network=True) == b"nameserver 192.0.2.1\n"
    assert own.read_text("ascii") == "nameserver 192.0.2.1\n"
    alone = room.run("sh", "-c", "cat /etc/resolv.conf 2>&1; exit 0").decode()
    if link is None:
        assert alone == place.read_text("ascii") == "# the image's\n"
    else:
        assert "No such file" in alone


def test_no_open_file_of_this_machine_comes_along_and_the_folder_stays_taken_until_the_program_ends(
    room: Room, tmp_path: Path
) -> None:
    work, signs = tmp_path / "work", tmp_path / "signs"
    signs.mkdir()
    said = []

    def work_there(lock: int) -> None:
        asked = "ls /proc/$$/fd; : > /run/signs/begun; while ! test -e /run/signs/end; do sleep 0.05; done"
        locked = replace(room, lock=lock)
        said.append(locked.run("sh", "-c", asked, folders=((signs, "/run/signs", "rw"),)))

    try:
        with bench(work, lambda line: None) as here:
            program = threading.Thread(target=work_there, args=(here.lock,))
            program.start()
            until((signs / "begun").exists)
        assert not takes(work)
    finally:
        (signs / "end").touch()
        program.join()
    assert said == [b"0\n1\n2\n"]
    assert takes(work)


def test_grub_is_told_of_paths_as_on_a_disk_of_its_own_and_of_no_folder_of_this_machine(room: Room) -> None:
    real = room.tree / "usr/bin/grub-mkrelpath"
    real.parent.mkdir(parents=True)
    real.write_text("#!/bin/sh\nexit 9\n", "ascii")
    (room.tree / "boot").mkdir()
    (room.tree / "kernels").symlink_to("boot")
    assert room.run("sh", "/usr/bin/grub-mkrelpath", "--relative", "/kernels").decode() == "/boot\n"
    assert real.read_text("ascii").endswith("exit 9\n")


def test_what_a_program_leaves_in_run_tmp_and_dev_is_gone_with_it(room: Room) -> None:
    room.run("sh", "-c", "echo x > /run/x; echo x > /tmp/x; echo x > /dev/x; echo x > /stays")
    left = {str(path.relative_to(room.tree)) for path in room.tree.rglob("*") if path.name in ("x", "stays")}
    assert left == {"stays"}


def test_a_program_that_fails_is_told_with_its_words(room: Room) -> None:
    with pytest.raises(InputError, match="ended with 7: no space for the kernel"):
        room.run("sh", "-c", "echo no space for the kernel >&2; exit 7")


def test_a_bake_that_is_killed_takes_its_programs_and_mounts_with_it_and_lets_the_folder_go(
    room: Room, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    program = (
        "import sys; from pathlib import Path; from railwright.image.inside import Room\n"
        "from railwright.image.stages import bench\n"
        "with bench(Path(sys.argv[1]), print) as here:\n"
        "    Room(Path(sys.argv[2]), Path(sys.argv[3]), 1, lock=here.lock).run('sleep', '600.25')\n"
    )
    baking = subprocess.Popen([sys.executable, "-c", program, str(work), str(room.tree), str(room.scratch)])
    try:
        until(lambda: sleepers() != [])
        with pytest.raises(InputError, match="another bake is at work"), bench(work, lambda line: None):
            pass
        assert mounted(room.tree) == []
    finally:
        baking.send_signal(signal.SIGKILL)
        baking.wait()
    until(lambda: sleepers() == [])
    until(lambda: takes(work))
    shutil.rmtree(room.tree)


def until(asked: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not asked():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def takes(work: Path) -> bool:
    try:
        with bench(work, lambda line: None):
            return True
    except InputError:
        return False


def sleepers() -> list[str]:
    """Processes of this test's own program, by its odd number of seconds."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if place.read_bytes().split(b"\0")[-2:-1] == [b"600.25"] and b"sleep" in place.read_bytes():
                found.append(place.parent.name)
        except OSError:
            continue
    return found


def test_the_same_tree_packs_to_the_same_bytes_whenever_and_in_whatever_order_it_was_written(
    tmp_path: Path,
) -> None:
    trees = []
    for number, names in enumerate((("a", "b", "c"), ("c", "b", "a"))):
        tree = tmp_path / f"tree{number}"
        tree.mkdir()
        for name in names:
            (tree / name).write_text(name, "ascii")
            # Later than the epoch, and not the same in both.
            os.utime(tree / name, (1800000000 + number, 1800000000 + number))
        (tree / "old").write_text("old", "ascii")
        os.utime(tree / "old", (1700000000, 1700000000))
        tarball.pack(tree, tmp_path / f"{number}.tar", 1790000000)
        trees.append((tmp_path / f"{number}.tar").read_bytes())
    assert trees[0] == trees[1]
    copy = tarball.unpack(tmp_path / "0.tar", tmp_path / "copy")
    assert [int((copy / name).stat().st_mtime) for name in ("a", "old")] == [1790000000, 1700000000]
