"""Nothing is left: not after an orderly end, not after the controller was killed at a bad moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


def own(*words: str, home: Path) -> list[str]:
    return ["env", f"RAILWRIGHT_LAB={home}", sys.executable, "-m", "tests.lab", *words]


def processes_with(word: str) -> list[str]:
    """Command lines of processes that name it, but for this one's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if word in line and int(folder.name) != os.getpid():
            found.append(f"{folder.name} {line[:160]}")
    return found


def network_namespaces() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def cgroups_with(word: str) -> list[str]:
    script = "mount -t cgroup2 cgroup2 /mnt && ls /mnt"
    listed = call(["unshare", "--mount", "--propagation", "private", "sh", "-c", script]).split()
    return [name for name in listed if word in name]


def left_of(name: str, home: Path, namespaces_: set[str]) -> dict[str, object]:
    """All that a run could have left behind; each is empty where it left nothing."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "processes": processes_with(str(home / name)),
        "namespaces": sorted(network_namespaces() & namespaces_),
        "cgroups": cgroups_with(f"railwright-lab-{name}-"),
        "mounts": [line for line in mounts if str(home) in line or "/run/lab" in line],
        "folder": [str(path) for path in home.glob("*")],
    }


NOTHING: dict[str, list[str]] = {"processes": [], "namespaces": [], "cgroups": [], "mounts": [], "folder": []}


def namespaces_of(run: Run) -> set[str]:
    return {os.readlink(f"/proc/{process.pid}/ns/net") for process in run.processes().values()}


def test_many_starts_and_stops_leave_nothing(
    ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lab.run.HOME", tmp_path)
    slow = []
    for cycle in range(CYCLES):
        suite = ("bookworm", "trixie")[cycle % 2]
        one = lab.up("cycle", [Wanted("n1", suite, MACHINES[0])])
        assert one.nodes[0].must("systemctl is-system-running").strip() == "running", cycle
        spaces = namespaces_of(one.run)
        assert len(spaces) == 2
        slow += one.down()
        assert left_of("cycle", tmp_path, spaces) == NOTHING, cycle
    print(f"{CYCLES} starts and stops, {len(slow)} of them ended by force")
    assert len(slow) <= CYCLES // 4


def test_a_crowd_of_nodes_comes_up_and_goes(
    ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lab.run.HOME", tmp_path)
    began = time.monotonic()
    kinds = (("bookworm", MACHINES[0]), ("trixie", MACHINES[1]))
    wanted = [Wanted(f"n{number:02}", *kinds[number % 2]) for number in range(NODES)]
    crowd = lab.up("crowd", wanted)
    took = time.monotonic() - began
    spaces = namespaces_of(crowd.run)
    assert len(spaces) == NODES + 1
    states = [node.ssh("systemctl is-system-running").stdout.strip() for node in crowd.nodes]
    began = time.monotonic()
    slow = crowd.down()
    print(
        f"{NODES} nodes up in {took:.0f} s, down in {time.monotonic() - began:.0f} s, by force: {len(slow)}"
    )
    assert states == ["running"] * NODES
    assert left_of("crowd", tmp_path, spaces) == NOTHING


def _started(home: Path, name: str, words: list[str]) -> subprocess.Popen[bytes]:
    argv = own("up", name, *words, home=home)
    return subprocess.Popen(argv, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("moment", ["fabric", "n1", "n1.keeper", "n2"])
def test_a_killed_controller_leaves_nothing_that_down_all_does_not_find(
    ready: None, tmp_path: Path, moment: str
) -> None:
    before = network_namespaces()
    controller = _started(tmp_path, "killed", ["n1=trixie", "n2=bookworm"])
    record = tmp_path / "killed/processes" / moment
    deadline = time.monotonic() + 120
    while not record.exists() and time.monotonic() < deadline:
        assert controller.poll() is None, "it ended too early"
        time.sleep(0.005)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    spaces = network_namespaces() - before
    done = ask(own("down", "--all", "--now", home=tmp_path), cwd=PROJECT)
    assert (done.returncode, done.stderr) == (0, "")
    assert left_of("killed", tmp_path, spaces) == NOTHING


def test_a_killed_keeper_takes_its_node_with_it(
    ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lab.run.HOME", tmp_path)
    one = lab.up("orphan", [Wanted("n1", "trixie", MACHINES[0])])
    spaces = namespaces_of(one.run)
    one.run.process("n1").signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while "n1.keeper" in one.run.processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(one.run.processes()) == ["fabric"]
    one.down()
    assert left_of("orphan", tmp_path, spaces) == NOTHING


def test_what_a_command_of_the_controller_leaves_running_ends_with_it(rack: Lab) -> None:
    call(rack.controller("sh", "-c", "sleep 987654 & exit 0"))
    assert processes_with("sleep 987654") == []


def test_down_ends_only_what_it_recorded(
    ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of somebody else in a folder of a run, and a stale record of a number that is somebody else's now."""
    monkeypatch.setattr("tests.lab.run.HOME", tmp_path)
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
    assert os.readlink("/proc/self/ns/net") not in namespaces_of(rack.run)
