"""Nothing is left: not after an orderly end, not after the controller was killed at a bad moment.

Each test asks for what its own run made, so other runs of the lab and other tests may come and go meanwhile: the run's
name has this process's number in it, and whatever is started for it inherits RAILWRIGHT_LAB, the folder of this test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.lab import LabError, lab
from tests.lab.lab import Lab, Wanted
from tests.lab.racks import MACHINES
from tests.lab.run import Run
from tests.lab.shell import ask, call

PROJECT = Path(__file__).resolve().parents[2]
# `make lab-long` asks for 32 and for 16.
CYCLES = int(os.environ.get("RAILWRIGHT_LAB_CYCLES", "4"))
NODES = int(os.environ.get("RAILWRIGHT_LAB_NODES", "4"))


def own(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.lab", *words]


def named(kind: str) -> str:
    """The name of a run that no other process has."""
    return f"{kind}{os.getpid()}"


@pytest.fixture
def home(ready: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of its own for the runs, which all that is started for them has in its environment.

    Below /var/tmp and not pytest's own, whose long name leaves no room for that of a socket.
    """
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as folder:
        monkeypatch.setattr("tests.lab.run.HOME", Path(folder))
        monkeypatch.setenv("RAILWRIGHT_LAB", folder)
        yield Path(folder)


def processes_with(word: str) -> dict[int, str]:
    """Command lines of processes that name it there or in their environment, but for this one's."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            if word.encode() in line + (folder / "environ").read_bytes():
                found[int(folder.name)] = line[:160].decode("utf-8", "replace")
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if pid != os.getpid()}


def network_namespaces() -> set[str]:
    """Those that a process of this machine is in."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found.add(os.readlink(link))
    return found


@contextmanager
def namespaces_of(home: Path) -> Iterator[set[str]]:
    """The network namespaces of what runs for this folder now, this machine's own left out.

    They are kept from being forgotten meanwhile, so that the kernel gives their numbers to no other.
    """
    held = []
    try:
        for pid in processes_with(str(home)):
            with suppress(OSError):
                held.append(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))
        names = {os.readlink(f"/proc/self/fd/{handle}") for handle in held}
        yield names - {os.readlink("/proc/self/ns/net")}
    finally:
        for handle in held:
            os.close(handle)


def cgroups_with(word: str) -> list[str]:
    script = "mount -t cgroup2 cgroup2 /mnt && ls /mnt"
    listed = call(["unshare", "--mount", "--propagation", "private", "sh", "-c", script]).split()
    return [name for name in listed if word in name]


def left_of(name: str, home: Path, namespaces_: set[str]) -> dict[str, object]:
    """All that a run could have left behind; each is empty where it left nothing."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "processes": processes_with(str(home)),
        "namespaces": sorted(network_namespaces() & namespaces_),
        "cgroups": cgroups_with(f"railwright-lab-{name}-"),
        "mounts": [line for line in mounts if str(home) in line or "/run/lab" in line],
        "folder": [str(path) for path in home.glob("*")],
    }


NOTHING: dict[str, object] = {"processes": {}, "namespaces": [], "cgroups": [], "mounts": [], "folder": []}


def test_many_starts_and_stops_leave_nothing(home: Path) -> None:
    name, slow = named("cycle"), []
    for cycle in range(CYCLES):
        suite = ("bookworm", "trixie")[cycle % 2]
        one = lab.up(name, [Wanted("n1", suite, MACHINES[0])])
        assert one.nodes[0].must("systemctl is-system-running").strip() == "running", cycle
        with namespaces_of(home) as spaces:
            assert len(spaces) == 2
            slow += one.down()
            assert left_of(name, home, spaces) == NOTHING, cycle
    print(f"{CYCLES} starts and stops, {len(slow)} of them ended by force")
    assert len(slow) <= CYCLES // 4


def test_a_crowd_of_nodes_comes_up_and_goes(home: Path) -> None:
    name = named("crowd")
    began = time.monotonic()
    kinds = (("bookworm", MACHINES[0]), ("trixie", MACHINES[1]))
    wanted = [Wanted(f"n{number:02}", *kinds[number % 2]) for number in range(NODES)]
    crowd = lab.up(name, wanted)
    took = time.monotonic() - began
    states = [node.ssh("systemctl is-system-running").stdout.strip() for node in crowd.nodes]
    with namespaces_of(home) as spaces:
        assert len(spaces) == NODES + 1
        began = time.monotonic()
        slow = crowd.down()
        print(
            f"{NODES} nodes up in {took:.0f} s, down in {time.monotonic() - began:.0f} s, by force: {len(slow)}"
        )
        assert states == ["running"] * NODES
        assert left_of(name, home, spaces) == NOTHING


@pytest.mark.parametrize("moment", ["fabric", "n1", "n1.keeper", "n2"])
def test_a_killed_controller_leaves_nothing_that_down_all_does_not_find(home: Path, moment: str) -> None:
    name = named("killed")
    controller = subprocess.Popen(
        own("up", name, "n1=trixie", "n2=bookworm"),
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    record = home / name / "processes" / moment
    deadline = time.monotonic() + 120
    while not record.exists() and time.monotonic() < deadline:
        assert controller.poll() is None, "it ended too early"
        time.sleep(0.005)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    with namespaces_of(home) as spaces:
        done = ask(own("down", "--all", "--now"), cwd=PROJECT)
        assert (done.returncode, done.stderr) == (0, "")
        assert left_of(name, home, spaces) == NOTHING


def test_a_killed_keeper_takes_its_node_with_it(home: Path) -> None:
    name = named("orphan")
    one = lab.up(name, [Wanted("n1", "trixie", MACHINES[0])])
    with namespaces_of(home) as spaces:
        _kill_the_keeper(one)
        one.down()
        assert left_of(name, home, spaces) == NOTHING


def _kill_the_keeper(one: Lab) -> None:
    one.run.process("n1").signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while "n1.keeper" in one.run.processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(one.run.processes()) == ["fabric"]


def test_what_a_command_of_the_controller_leaves_running_ends_with_it(rack: Lab) -> None:
    long = f"sleep 98765{os.getpid()}"
    call(rack.controller("sh", "-c", f"{long} & exit 0"))
    assert processes_with(long) == {}


def test_down_ends_only_what_it_recorded(home: Path) -> None:
    """A process of somebody else in a folder of a run, and a stale record of a number that is somebody else's now."""
    run = Run("other")
    run.begin()
    bystander = subprocess.Popen(["sleep", "60"], cwd=run.folder)
    try:
        run.record("x").parent.mkdir()
        fields = Path(f"/proc/{bystander.pid}/stat").read_text().split(" ")
        fields[21] = "1"
        run.record("x").write_text(" ".join(fields))
        run.down()
        assert bystander.poll() is None
        assert not run.folder.exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_a_name_that_is_taken_is_refused_and_nothing_of_it_touched(rack: Lab) -> None:
    with pytest.raises(LabError, match="is up already"):
        lab.up(rack.run.name, [Wanted("n1", "trixie", MACHINES[0])])
    assert len(rack.run.processes()) >= 5


def test_no_network_of_a_run_is_this_machines(rack: Lab) -> None:
    ours = os.readlink("/proc/self/ns/net")
    for process in rack.run.processes().values():
        assert os.readlink(f"/proc/{process.pid}/ns/net") != ours
