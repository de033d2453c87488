"""A root file system to work in: what its programs see, and that nothing of it outlives them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from railwright.image import tarball
from railwright.image.inside import Room
from railwright.image.stages import bench
from railwright.node.model import InputError

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not sys.platform.startswith("linux"),
    reason="files on a node belong to root, so writing them needs root",
)
PROGRAMS = ("sh", "cat", "ls", "sleep")


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A tree of four programs and their libraries, with a kernel's folder."""
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
        "cat /proc/cmdline /proc/modules /proc/swaps /proc/sys/kernel/osrelease; ls /sys/bus/pci/devices;"
        "ls /sys/devices/system/cpu; echo $SOURCE_DATE_EPOCH; ls /dev"
    )
    out = room.run("sh", "-c", asked).decode().split()
    assert out[:4] == ["6.12.1-image", "cpu0", "online", "1790000000"]
    assert set(out[4:]) == {
        "disk", "fd", "full", "null", "pts", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero",
    }  # fmt: skip
    assert mounted(room.tree) == []


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
