"""Machines come and go: two layouts at a time, an emulator that aborts, a controller that is killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import cache
from tests.lab.errors import LabError
from tests.lab.shell import ask
from tests.lab.test_lab_vm import agrees
from tests.lab.vm import saved
from tests.lab.vm.layout import layout
from tests.lab.vm.machine import Vm

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(vm_ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own for the runs: what is left there was left by this test."""
    monkeypatch.setattr("tests.lab.run.HOME", tmp_path)
    return tmp_path


def emulators(home: Path) -> list[str]:
    """The processes of this machine whose command line names the folder."""
    found = []
    for page in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = page.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "qemu" in words[0] and any(str(home) in word for word in words):
            found.append(page.parent.name)
    return found


def break_resumes(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The emulator aborts while the machine resumes, so many times. Returns the processes that were started."""
    started: list[int] = []
    resume = Vm.resume

    def aborts(vm: Vm, state: Path) -> None:
        resume(vm, state)
        process = vm.emulator
        started.append(process.pid)
        if len(started) <= times:
            process.signal(signal.SIGABRT)
            assert process.wait(60)

    monkeypatch.setattr(Vm, "resume", aborts)
    return started


def test_an_emulator_that_aborts_is_started_once_more_and_the_log_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And meanwhile a machine of the other layout runs, on a port of its own."""
    started = break_resumes(monkeypatch, times=1)
    with caplog.at_level(logging.WARNING):
        one = saved.up("one", layout("two-nodes"))
    assert len(started) == 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("one: the emulator has ended and is started once more")
    other = saved.up("other", layout("four-nodes"))
    assert one.port != other.port
    agrees(other)
    assert one.must("systemctl is-system-running").strip() == "running"
    assert len(emulators(home)) == 2
    for vm in (one, other):
        vm.down()
    assert (emulators(home), list(home.iterdir())) == ([], [])


def test_an_emulator_that_aborts_again_is_an_error_and_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = break_resumes(monkeypatch, times=2)
    with pytest.raises(LabError, match="has ended"):
        saved.up("broken", layout("two-nodes"))
    assert len(started) == 2
    assert (emulators(home), list(home.iterdir())) == ([], [])


def test_a_resumed_machine_has_not_booted_and_its_random_numbers_are_its_own(home: Path) -> None:
    seen = []
    for name in ("a", "b"):
        vm = saved.up(name, layout("two-nodes"))
        seen.append(
            vm.must("cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1").split(
                "\n", 1
            )
        )
        vm.down()
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_a_killed_controller_leaves_nothing_that_down_all_does_not_find(home: Path) -> None:
    saved.saved(layout("two-nodes"))
    environment = {**os.environ, "RAILWRIGHT_LAB": str(home), "RAILWRIGHT_LAB_CACHE": str(cache.HOME)}
    own = [sys.executable, "-m", "tests.lab"]
    controller = subprocess.Popen([*own, "vm", "up", "killed"], cwd=PROJECT, env=environment)
    record = home / "killed/processes/emulator"
    deadline = time.monotonic() + 120
    while not record.exists() and time.monotonic() < deadline:
        assert controller.poll() is None, "it ended too early"
        time.sleep(0.005)
    controller.kill()
    controller.wait()
    assert len(emulators(home)) == 1
    done = ask([*own, "down", "--all", "--now"], cwd=PROJECT, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert (emulators(home), list(home.iterdir())) == ([], [])


def test_a_layout_that_the_lab_has_not_is_refused() -> None:
    with pytest.raises(LabError, match="'three' is none of the lab's; expected two-nodes or four-nodes"):
        layout("three")


def test_a_run_without_a_machine_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lab.run.HOME", tmp_path)
    with pytest.raises(LabError, match="is no virtual machine that is up"):
        Vm.find("nothing")
