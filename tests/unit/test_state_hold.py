"""A run of several calls: the process that holds the node between them, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from railwright.node import boot, readiness
from railwright.node.state import Held, InputError, StateError, apply, holder, lock, release, revert
from railwright.node.state import hold as real_hold
from railwright.node.state.item import Node
from tests.unit.hold_support import end_holder, hold, holding, is_free, lasting, put, wait_for
from tests.unit.small_machine import gpu_node
from tests.unit.state_support import Systemd, fingerprint, make_node, plant

LOCK = "run/railwright.lock"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    node = make_node(tmp_path / "node")
    yield node
    end_holder(node)


def test_a_run_holds_the_node_between_its_calls_and_others_are_told_by_whom_since_and_until(
    node: Path,
) -> None:
    assert hold(node) == ""
    note = holding(node)
    for run in ("", "run-2"):
        for check in (True, False):
            with pytest.raises(Held) as caught:
                put(node, run=run, check=check)
            assert caught.value.why == (
                f"another run is at work on this node: process {note['pid']} for ops@rack-7, run run-1, since "
                f"{note['since']}, until {note['until']} unless it goes on"
            )
            assert caught.value.remedy == (
                f"let it end, then run again; when its controller is known to be dead: kill {note['pid']} on the node"
            )
            with pytest.raises(Held):
                revert(root=str(node), run=run, check=check)
    assert hold(node, "run-2").startswith("/run/railwright.lock: another run is at work on this node")
    assert not (node / "etc/a").exists()
    since, until = (datetime.fromisoformat(note[name]) for name in ("since", "until"))
    assert (until - since).total_seconds() == 60
    for content in ("a", "b"):
        assert put(node, content, run="run-1", check=True).changed
        assert put(node, content, run="run-1").changed
    assert lasting(holding(node)) == lasting(note)
    assert release("run-1", root=str(node))
    assert list((node / "run").iterdir()) == []
    assert put(node, "c", run="run-2").changed


def test_holding_twice_is_holding_once_and_a_release_of_another_run_is_none(node: Path) -> None:
    assert hold(node) == ""
    note = holding(node)
    assert hold(node, seconds=5) == ""
    real_hold("run-1", seconds=5, root=str(node))
    assert holding(node)["lease"] == 60
    assert holding(node)["deadline"] > note["deadline"]
    with pytest.raises(Held):
        real_hold("run-2", root=str(node))
    assert not release("run-2", root=str(node))
    assert not release("", root=str(node))
    assert not release("run-1", root=str(node), check=True)
    assert lasting(holding(node)) == lasting(note)
    assert release("run-1", root=str(node))
    assert not release("run-1", root=str(node))


def test_a_lock_of_another_process_on_a_file_of_the_same_number_holds_nothing(node: Path) -> None:
    """A file system of a tenant's own may have the same numbers: the process has to be the one of the note, too."""
    hold(node)
    pid = holding(node)["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: is_free(node))
    with (node / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as the kernel lists one of the same number
        assert lock.is_locked(file.fileno(), os.getpid())
        assert not lock.is_locked(file.fileno(), pid)
        assert put(node, check=True).changed
        assert not release("run-1", root=str(node))


def test_a_renewal_never_writes_into_the_lock_of_another_run(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(node)
    pid = holding(node)["pid"]
    other = json.dumps({"pid": 1, "run": "run-2"})
    real = lock.is_locked

    def replaced(fd: int, pid: Any) -> bool:
        (node / LOCK).unlink()
        (node / LOCK).write_text(other)
        return real(fd, pid)

    with monkeypatch.context() as patch:
        patch.setattr(lock, "is_locked", replaced)
        assert lock.renew(Node(str(node)), "run-1", ["a.service"])
    assert (node / LOCK).read_text() == other
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    assert (node / LOCK).read_text() == other  # nor does the holder take it away


def test_who_reads_a_note_while_it_is_written_finds_a_whole_one(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(node)
    note = holding(node)
    seen: list[dict[str, Any]] = []

    def look(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen.append(lock.read_note(Node(str(node))))
            done = real(*arguments)
            seen.append(lock.read_note(Node(str(node))))
            return done

        return call

    with lock.hold_of(Node(str(node)), "run-1") as found:
        assert found is not None
        for name in ("pwrite", "ftruncate"):
            monkeypatch.setattr(os, name, look(getattr(os, name)))
        shorter = {key: value for key, value in note.items() if key != "owner"}
        lock.sign(found[0], LOCK, shorter)
    assert seen[0] == note
    assert all(told in (note, shorter) for told in seen)
    assert seen[-1] == shorter


def test_a_unit_that_a_call_of_the_run_starts_may_write_and_nobody_else_may(node: Path) -> None:
    """The boot unit, started by a call of a run that holds the node."""
    systemd = Systemd(node)
    name = "railwright.service"
    plant(node, f"/etc/systemd/system/{name}", "[Install]\n")
    hold(node)
    start = systemd._start
    said: list[str] = []

    def writes(unit: str) -> tuple[int, str, str]:
        for own in ("", "other.service"):
            with pytest.raises(Held):
                put(node, "stranger", unit=own)
        said.append(str(put(node, "inside", unit=name).changed))
        return start(unit)

    systemd._start = writes  # type: ignore[assignment,method-assign]
    entry = {"kind": "systemd_unit", "name": name, "state": "started"}
    outcome = apply({"boot_unit": [entry]}, root=str(node), runner=systemd, run="run-1")
    assert (outcome.failures, said) == ((), ["True"])
    assert (node / "etc/a").read_text() == "inside"
    with pytest.raises(Held):
        put(node, "afterwards", unit=name)
    assert holding(node)["starting"] == []


def test_a_boot_waits_for_a_run_that_holds_the_node_and_then_says_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "_LOCK_SECONDS", 0.5)
    node = gpu_node(tmp_path / "node")
    (node / "run").mkdir(exist_ok=True)
    (node / "var/lib").mkdir(parents=True, exist_ok=True)
    hold(node)
    said: list[str] = []
    waiting = readiness.Waiting(longest=0.0, between=0.0)
    begun = time.monotonic()
    assert boot.boot(node, said.append, waiting=waiting) == boot.REFUSED
    assert time.monotonic() - begun >= 0.5
    assert "for ops@rack-7, run run-1, since 20" in said[-1]
    assert not (node / "etc/nccl.conf").exists()
    release("run-1", root=str(node))
    assert boot.boot(node, said.append, waiting=waiting) != boot.REFUSED
    assert (node / "etc/nccl.conf").exists()


def test_a_check_holds_nothing(node: Path) -> None:
    before = fingerprint(node)
    assert hold(node, check=True) == ""
    assert fingerprint(node) == before
    assert is_free(node)


def test_a_node_without_a_run_folder_is_an_error_in_a_check_too(node: Path) -> None:
    (node / "run").rmdir()
    why = "cannot be opened: No such file or directory"
    for check in (True, False):
        assert why in hold(node, check=check)
        with pytest.raises(StateError, match=why):
            put(node, check=check)
    assert not (node / "etc/a").exists()


def test_a_note_of_a_stranger_cannot_steer_a_terminal_or_fill_it(node: Path) -> None:
    hold(node)
    note = holding(node)
    fd = os.open(node / LOCK, os.O_RDWR)
    lock.sign(fd, LOCK, {**note, "owner": "\x1b[2J\u202e" + "x" * 5000})
    os.close(fd)
    with pytest.raises(Held) as caught:
        put(node)
    assert "for ?[2J?xxx" in caught.value.why
    assert len(caught.value.why) < 500


def test_a_note_that_names_no_process_is_nobodys(node: Path) -> None:
    for pid in (None, "7", -1, 2**80, 2**22 + 1, os.getpid()):
        (node / LOCK).write_text(
            '{"run": "run-1"}' if pid is None else f'{{"run": "run-1", "pid": {json.dumps(pid)}}}'
        )
        assert not release("run-1", root=str(node))
    assert (node / LOCK).exists()


@pytest.mark.parametrize(
    ("run", "seconds", "where"),
    [
        ("", 60, "run"),
        ("a b", 60, "run"),
        ("a" * 65, 60, "run"),
        ("a\n", 60, "run"),
        (7, 60, "run"),
        ("a", 0, "seconds"),
        ("a", 86401, "seconds"),
        ("a", True, "seconds"),
        ("a", "60", "seconds"),
    ],
)
def test_a_hold_that_cannot_be_is_refused(node: Path, run: Any, seconds: Any, where: str) -> None:
    with pytest.raises(InputError) as caught:
        real_hold(run, seconds=seconds, root=str(node))
    assert caught.value.where == where
    assert list((node / "run").iterdir()) == []


def test_a_holder_that_does_not_let_go_is_named(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "_END_SECONDS", 0.2)
    hold(node)
    pid = holding(node)["pid"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StateError, match=f"process {pid} does not let go") as caught:
        release("run-1", root=str(node))
    assert caught.value.remedy == f"kill -9 {pid}"
