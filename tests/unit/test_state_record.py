"""The record of what was there before, the locks, and who may have what."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Held, InputError, StateError, apply, lock, revert
from railwright.node.state.item import Node
from tests.unit.state_support import Systemd, file_entry, fingerprint, item, items, make_node, plant, stamps

SOURCE = Path(__file__).resolve().parents[2] / "src"
RECORD = "var/lib/railwright/state.json"
LOCK = "run/railwright.lock"
WRITE_LOCK = "run/railwright.write.lock"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def put(node: Path, *entries: dict[str, Any], name: str = "part", **more: Any) -> Any:
    return apply({name: list(entries)}, root=str(node), **more)


def test_the_record_is_for_root_alone_and_holds_what_was_there(node: Path) -> None:
    plant(node, "/etc/a", b"\x00old", 0o640)
    put(node, file_entry("/etc/a", "new\n", because="a reason"))
    assert (node / RECORD).stat().st_mode & 0o777 == 0o600
    record = json.loads((node / RECORD).read_bytes())
    assert record["schema"] == "railwright.state/1"
    kept = record["slices"]["part"]["file:/etc/a"]
    assert base64.b64decode(kept["cells"][""]["prior"]["bytes"]) == b"\x00old"
    assert kept["cells"][""]["prior"]["mode"] == "0640"
    assert kept["cells"][""]["pending"] is False
    assert (kept["entry"]["because"], "content" in kept["entry"]) == ("a reason", False)


def test_the_prior_value_is_on_disk_before_the_write(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from railwright.node.state import files

    plant(node, "/etc/a", "old\n")
    seen: list[dict[str, Any]] = []
    real = files.replace

    def watch(root: str, path: str, content: files.Content, found: files.Snapshot | None) -> None:
        if path == "/etc/a":
            seen.append(
                json.loads((node / RECORD).read_bytes())["slices"]["part"]["file:/etc/a"]["cells"][""]
            )
        real(root, path, content, found)

    monkeypatch.setattr(files, "replace", watch)
    put(node, file_entry("/etc/a", "new\n"))
    assert [(base64.b64decode(cell["prior"]["bytes"]), cell["pending"]) for cell in seen] == [
        (b"old\n", True)
    ]


def test_an_exception_of_nobodys_leaves_a_record_that_is_true(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from railwright.node.state import files

    plant(node, "/etc/a", "old\n")
    plant(node, "/etc/b", "old\n")
    before = fingerprint(node)
    real = files.replace

    def stop(root: str, path: str, content: files.Content, found: files.Snapshot | None) -> None:
        if path == "/etc/b":
            raise KeyboardInterrupt
        real(root, path, content, found)

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            put(node, file_entry("/etc/a", "new\n"), file_entry("/etc/b", "new\n"))
    assert (node / "etc/a").read_text() == "new\n"
    assert not (node / LOCK).exists()
    revert(root=str(node))
    assert fingerprint(node) == before


@pytest.mark.parametrize(
    ("content", "where", "why"),
    [
        ("{", "", "this is not JSON: "),
        ("[]", "", "expected a mapping, found a list"),
        ("{}", ".schema", "missing"),
        (
            '{"schema": "railwright.state/9"}',
            ".schema",
            "found 'railwright.state/9', expected 'railwright.state/1'",
        ),
        ({"made": [7]}, ".made[0]", "expected text, found a number"),
        ({"made": ["etc"]}, ".made[0]", "'etc' is not absolute"),
        ({"slices": []}, ".slices", "expected a mapping, found a list"),
        ({"slices": {"a": 1}}, ".slices.a", "expected a mapping, found a number"),
        ({"slices": {"a": {"x": {"entry": {}, "cells": {}, "more": 1}}}}, ".slices.a.x.more", "unknown key"),
        (
            {"slices": {"a": {"x": {"entry": {}, "cells": {"": {"prior": 1}}}}}},
            ".slices.a.x.cells..written",
            "missing",
        ),
        (
            {"slices": {"a": {"x": {"entry": {"kind": "later"}, "cells": {}}}}},
            ".slices.a.x.kind",
            "unknown kind 'later'",
        ),
        ({"more": 1}, ".more", "unknown key"),
    ],
)
def test_a_record_that_is_none_of_ours_stops_the_run(node: Path, content: Any, where: str, why: str) -> None:
    whole = {"schema": "railwright.state/1", "made": [], "slices": {}, "origins": {}, "reload": False}
    text = content if isinstance(content, str) else json.dumps({**whole, **content})
    plant(node, f"/{RECORD}", text, 0o600)
    before = fingerprint(node)
    for check in (True, False):
        with pytest.raises(StateError) as caught:
            put(node, file_entry("/etc/a", "a"), check=check)
        assert caught.value.where == f"/{RECORD}{where}"
        assert caught.value.why.startswith(why)
    assert fingerprint(node) == before


def _record_of_every_kind(node: Path) -> dict[str, Any]:
    """A record with something of every kind."""
    plant(node, "/etc/a", "old\n")
    plant(node, "/etc/b.json", '{"a": 1}\n')
    plant(node, "/proc/sys/vm/swappiness", "60\n")
    plant(node, "/proc/irq/60/smp_affinity_list", "0-3\n")
    plant(node, "/proc/interrupts", "     CPU0\n 60:  0  IR-PCI-MSIX-0000:18:00.0 0-edge mlx5_comp0@pci\n")
    plant(node, "/sys/bus/pci/devices/0000:18:00.0/msi_irqs/60", "msix\n")
    plant(node, "/etc/systemd/system/a.service", "[Install]\n")
    put(
        node,
        file_entry("/etc/a", "ours\n"),
        {"kind": "json_keys", "path": "/etc/b.json", "keys": {"/a": 2}},
        {"kind": "sysctl", "name": "vm.swappiness", "value": "10"},
        {"kind": "irq_affinity", "device": "0000:18:00.0", "cpus": "2"},
        {"kind": "systemd_unit", "name": "a.service", "enabled": True, "state": "started"},
        runner=Systemd(node),
    )
    record: dict[str, Any] = json.loads((node / RECORD).read_bytes())
    return record


_A = ("slices", "part", "file:/etc/a", "cells", "", "prior")
_B = ("origins", "json_keys:/etc/b.json")
_KEY = ("slices", "part", "json_keys:/etc/b.json", "cells", "/a")
_SYSCTL = ("slices", "part", "sysctl:vm.swappiness", "cells", "")
_IRQ = ("slices", "part", "irq_affinity:0000:18:00.0", "cells", "60")
_UNIT = ("slices", "part", "systemd_unit:a.service", "cells")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        ((*_A, "bytes"), "b2!xk", "this is not base64"),
        ((*_A, "bytes"), "b2xkZA==", "the bytes have another size or digest than the record says"),
        ((*_A, "bytes"), "b2xlCg==", "the bytes have another size or digest than the record says"),
        (("slices", "part", "file:/etc/a", "entry", "path"), "/etc/z", "its entry is that of file:/etc/z"),
        ((*_B, "bytes"), "b2xk!", "this is not base64"),
        ((*_B, "bytes"), "e30K", "the bytes have another size or digest than the record says"),
        ((*_A, "sha256"), "0" * 64 + "\n", f"{'0' * 64 + chr(10)!r} is no SHA-256 digest"),
        ((*_A, "mode"), "zzz", "'zzz' is no file mode"),
        ((*_A, "mode"), "0644\n", "'0644\\n' is no file mode"),
        ((*_A, "mode"), 420, "expected text, found a number"),
        ((*_A, "uid"), "root", "expected a whole number, found text"),
        ((*_A, "gid"), 2**40, "1099511627776 is out of range"),
        ((*_A, "gid"), 2**32 - 1, "4294967295 is out of range"),
        ((*_A, "mtime_ns"), "x", "expected a whole number, found text"),
        ((*_A, "mtime_ns"), 2**94, f"{2**94} is out of range"),
        ((*_A, "mtime_ns"), ..., "missing"),
        ((*_A[:-1], "written"), [7], "expected a mapping, found a number"),
        (_B, ..., "missing"),
        ((*_KEY, "prior"), 7, "expected a mapping, found a number"),
        ((*_SYSCTL, "prior"), 7, "expected text, found a number"),
        ((*_SYSCTL, "written"), [None], "expected text, found nothing"),
        ((*_IRQ, "prior"), "4-2", "'4-2' is no CPU list: range 4-2"),
        ((*_IRQ, "prior"), 4, "expected text, found a number"),
        ((*_UNIT, "active", "prior"), "up", "found 'up'"),
        ((*_UNIT, "enabled", "prior"), True, "expected text, found true or false"),
    ],
)
def test_a_record_with_a_damaged_value_is_refused_by_its_place_before_anything_is_put_back(
    node: Path, place: tuple[str, ...], value: Any, why: str
) -> None:
    record = _record_of_every_kind(node)
    holder: Any = record
    for name in place[:-1]:
        holder = holder[name]
    if value is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    (node / RECORD).write_text(json.dumps(record))
    before = fingerprint(node)
    for check in (True, False):
        with pytest.raises(StateError) as caught:
            revert(root=str(node), check=check)
        assert caught.value.why == why
        named = place[:3] if "entry" in place else place
        assert caught.value.where == f"/{RECORD}.{'.'.join(named)}" + ("[0]" if "written" in place else "")
    assert fingerprint(node) == before


def test_a_record_that_is_nested_without_end_stops_the_run(node: Path) -> None:
    plant(node, f"/{RECORD}", "[" * 100000, 0o600)
    with pytest.raises(StateError, match="this is not JSON"):
        revert(root=str(node))


def test_a_record_that_others_could_have_written_is_not_believed(node: Path) -> None:
    put(node, file_entry("/etc/a", "a"))
    (node / RECORD).chmod(0o602)
    with pytest.raises(StateError, match="with mode 0602, so others may have written it"):
        revert(root=str(node))
    (node / RECORD).chmod(0o600)
    if os.geteuid() == 0:
        os.chown(node / RECORD, 1000, 1000)
        with pytest.raises(StateError, match="it belongs to user 1000"):
            revert(root=str(node))


def test_a_record_that_is_a_link_or_cannot_be_read_stops_the_run(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from railwright.node.state import files

    (node / RECORD).parent.mkdir()
    (node / RECORD).symlink_to("/etc/shadow")
    with pytest.raises(StateError, match=f"/{RECORD} is a symbolic link to /etc/shadow"):
        put(node, file_entry("/etc/a", "a"))
    (node / RECORD).unlink()

    def refuse(root: str, path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "read", refuse)
    with pytest.raises(StateError, match="Permission denied"):
        put(node, file_entry("/etc/a", "a"))


def test_a_record_that_would_grow_too_large_to_read_stops_the_run_before_any_write(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from railwright.node.state import files

    plant(node, "/etc/a", "x" * 3000)
    before = fingerprint(node)
    monkeypatch.setattr(files, "LARGEST", 4000)
    with pytest.raises(StateError, match="at most 4000 can be kept"):
        put(node, file_entry("/etc/a", "a"))
    assert fingerprint(node) == before


def test_a_record_that_cannot_be_brought_up_to_date_is_a_failure_and_loses_nothing(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from railwright.node.state import record

    plant(node, "/etc/a", "old\n")
    before = fingerprint(node)
    real = record.Record.save
    saves: list[int] = []

    def second_fails(self: record.Record, at: Node) -> None:
        saves.append(1)
        if len(saves) == 2:
            raise StateError(f"/{RECORD}", "the record cannot be kept: No space left on device", "free space")
        real(self, at)

    with monkeypatch.context() as patch:
        patch.setattr(record.Record, "save", second_fails)
        outcome = put(node, file_entry("/etc/a", "new\n"))
    assert outcome.changed
    assert [failure.where for failure in outcome.failures] == [f"/{RECORD}"]
    revert(root=str(node))
    assert fingerprint(node) == before


def test_an_empty_folder_of_ours_that_a_killed_run_left_goes(node: Path) -> None:
    (node / RECORD).parent.mkdir()
    assert not revert(root=str(node)).changed
    assert not (node / RECORD).parent.exists()


def test_a_thing_of_another_slice_of_the_record_is_refused_naming_both(node: Path) -> None:
    put(node, file_entry("/etc/a", "a"), name="one")
    with pytest.raises(InputError) as caught:
        put(node, file_entry("/etc/a", "b"), name="two")
    assert caught.value.why.startswith("slice one and slice two both own file /etc/a")
    assert (node / "etc/a").read_text() == "a"
    put(node, name="one")
    assert put(node, file_entry("/etc/a", "b"), name="two").failures == ()


def test_a_thing_that_moves_between_slices_of_one_run_keeps_its_prior_value(node: Path) -> None:
    plant(node, "/etc/a", "old\n")
    before = fingerprint(node)
    put(node, file_entry("/etc/a", "ours\n"), name="one")
    outcome = apply({"one": [], "two": [file_entry("/etc/a", "ours too\n")]}, root=str(node))
    assert (items(outcome, "one"), list(items(outcome, "two"))) == ({}, ["file:/etc/a"])
    assert not revert(["one"], root=str(node)).changed
    revert(["two"], root=str(node))
    assert fingerprint(node) == before


def test_slices_that_are_not_named_are_left_alone(node: Path) -> None:
    put(node, file_entry("/etc/a", "a"), name="one")
    put(node, file_entry("/etc/b", "b"), name="two")
    put(node, name="three")
    assert revert(["two", "never"], root=str(node)).to_json()["slices"]["never"]["items"] == []
    assert [path.name for path in (node / "etc").iterdir()] == ["a"]


# Locks


@contextmanager
def holder(node: Path, program: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the node's locks, says so, and lets go when its standard input ends."""
    text = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from railwright.node.state.item import Node
from railwright.node.state.lock import Lock
lock = Lock(Node({str(node)!r}), "rack-7")
with lock:
    {program or "print('held', flush=True); sys.stdin.read()"}
"""
    with subprocess.Popen(
        [sys.executable, "-B", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_a_second_run_is_told_who_holds_the_node_and_writes_nothing(node: Path) -> None:
    with holder(node) as other:
        for check in (True, False):
            with pytest.raises(Held) as caught:
                put(node, file_entry("/etc/a", "a"), check=check)
            assert caught.value.where == "/run/railwright.lock"
            assert caught.value.why.startswith(
                f"another run is at work on this node: process {other.pid} for rack-7 since 20"
            )
    assert not (node / "etc/a").exists()
    assert put(node, file_entry("/etc/a", "a")).changed


def test_a_lock_goes_with_its_holder_and_what_it_left_is_no_lock(node: Path) -> None:
    with holder(node) as other:
        other.kill()
        other.wait()
        assert (node / LOCK).exists()
        assert put(node, file_entry("/etc/a", "a"), check=True).changed
        assert put(node, file_entry("/etc/a", "a")).changed
    assert not (node / LOCK).exists()


def test_a_holder_that_has_not_signed_yet_is_still_a_holder(node: Path) -> None:
    with holder(node):
        for text in ("", "{", "[]"):
            (node / LOCK).write_text(text)
            with pytest.raises(Held, match="one that has not said who it is yet"):
                put(node, file_entry("/etc/a", "a"))


def test_a_run_that_may_wait_waits(node: Path) -> None:
    with holder(node) as other:
        assert other.stdin is not None
        threading.Timer(0.3, other.stdin.close).start()
        assert put(node, file_entry("/etc/a", "a"), wait=60).changed


def test_a_lock_file_that_its_last_holder_takes_away_meanwhile_is_no_lock(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    taken: list[int] = []

    def late(fd: int, how: int) -> None:
        if not taken:
            (node / LOCK).unlink()  # between our opening it and our locking it
        taken.append(fd)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    fd = lock.take(Node(str(node)), "/run/railwright.lock", 0)
    assert os.path.samestat(os.fstat(fd), (node / LOCK).stat())
    assert len(taken) == 2
    os.close(fd)


def test_two_processes_that_race_for_one_node_never_write_at_once(node: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(SOURCE)!r})
from railwright.node.state.item import Node
from railwright.node.state.lock import Held, Lock
wins = 0
while wins < 60:
    try:
        with Lock(Node({str(node)!r}), ""):
            os.mkdir({str(node / "etc/inside")!r})  # fails when somebody is inside
            os.rmdir({str(node / "etc/inside")!r})
            wins += 1
    except Held:
        pass
"""
    racers = [
        subprocess.Popen([sys.executable, "-B", "-c", program], stderr=subprocess.PIPE) for _ in range(3)
    ]
    assert [(racer.communicate()[1], racer.returncode) for racer in racers] == [(b"", 0)] * 3
    assert list((node / "run").iterdir()) == []


def test_a_lock_that_cannot_be_is_an_error(node: Path) -> None:
    (node / LOCK).symlink_to("/etc/shadow")
    with pytest.raises(StateError, match="cannot be opened: Too many levels of symbolic links"):
        put(node, file_entry("/etc/a", "a"))


@pytest.mark.parametrize("path", [LOCK, WRITE_LOCK])
def test_a_fifo_in_the_place_of_a_lock_is_an_error_and_no_lock_stays(node: Path, path: str) -> None:
    os.mkfifo(node / path)
    with pytest.raises(StateError) as caught:
        put(node, file_entry("/etc/a", "a"))
    assert (caught.value.where, caught.value.why) == (f"/{path}", "this is no regular file")
    (node / path).unlink()
    assert list((node / "run").glob("*.lock")) == []
    assert put(node, file_entry("/etc/a", "a")).changed


def test_a_full_run_is_an_error_and_both_locks_go(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StateError) as caught:
            put(node, file_entry("/etc/a", "a"))
    assert (caught.value.where, caught.value.remedy[:10]) == (f"/{LOCK}", "free space")
    assert list((node / "run").iterdir()) == []
    assert put(node, file_entry("/etc/a", "a")).changed


def test_a_second_lock_that_is_held_lets_go_of_the_first(node: Path) -> None:
    with holder(node):
        (node / LOCK).unlink()  # as if its holder had been killed while its unit still writes
        with pytest.raises(Held) as caught:
            put(node, file_entry("/etc/a", "a"))
        assert caught.value.where == "/run/railwright.write.lock"
        assert not (node / LOCK).exists()


def test_a_unit_that_a_run_starts_may_write_and_nobody_else_may(node: Path) -> None:
    """The boot unit: its start does not come back before it has written, and the run waits for its start."""
    systemd = Systemd(node)
    name = "railwright-tune.service"
    plant(node, f"/etc/systemd/system/{name}", "[Install]\n")
    plant(node, "/etc/inside", "old\n")
    before = fingerprint(node)
    start = systemd._start
    said: list[str] = []

    def writes(unit: str) -> tuple[int, str, str]:
        for own in ("", "other.service"):
            with pytest.raises(Held) as caught:
                put(node, file_entry("/etc/stranger", "x"), name="boot", unit=own)
            said.append(caught.value.where)
        outcome = put(node, file_entry("/etc/inside", "inside\n", reboot=True), name="boot", unit=name)
        said.append(str(outcome.changed))
        return start(unit)

    systemd._start = writes  # type: ignore[assignment,method-assign]
    entry = {"kind": "systemd_unit", "name": name, "state": "started"}
    outcome = put(node, entry, file_entry("/etc/a", "a\n"), runner=systemd)
    assert (outcome.failures, said) == ((), ["/run/railwright.lock", "/run/railwright.lock", "True"])
    assert outcome.reboot_needed == ("file:/etc/inside",)  # what the unit has left is known to the run
    record = json.loads((node / RECORD).read_bytes())["slices"]
    assert sorted(record["part"]) == ["file:/etc/a", f"systemd_unit:{name}"]
    assert list(record["boot"]) == ["file:/etc/inside"]
    assert record["part"][f"systemd_unit:{name}"]["cells"]["active"]["pending"] is False
    assert list((node / "run").glob("*.lock")) == []
    revert(root=str(node), runner=systemd)
    assert fingerprint(node) == before


def test_a_lent_lock_that_does_not_come_back_is_a_failure_and_loses_nothing(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_TAKE_BACK_SECONDS", 0.2)
    systemd = Systemd(node)
    name = "railwright-tune.service"
    plant(node, f"/etc/systemd/system/{name}", "[Install]\n")
    before = fingerprint(node)
    start = systemd._start
    taken: list[int] = []

    def keeps(unit: str) -> tuple[int, str, str]:
        taken.append(lock.take(Node(str(node)), "/run/railwright.write.lock", 0))
        return start(unit)

    systemd._start = keeps  # type: ignore[assignment,method-assign]
    outcome = put(node, {"kind": "systemd_unit", "name": name, "state": "started"}, runner=systemd)
    assert [failure.where for failure in outcome.failures] == ["/run/railwright.write.lock"]
    assert item(outcome)["changed"]
    os.close(taken[0])
    (node / WRITE_LOCK).unlink()
    assert list((node / "run").glob("*.lock")) == []
    revert(root=str(node), runner=systemd)
    assert (fingerprint(node), systemd.since) == (before, {})


def test_a_check_leaves_every_inode_and_time_as_it_was(node: Path) -> None:
    put(node, file_entry("/etc/a", "a"), {"kind": "json_keys", "path": "/etc/b.json", "keys": {"/a": 1}})
    plant(node, "/etc/.a.railwright", "left over")
    before = stamps(node)
    assert put(node, file_entry("/etc/a", "b"), file_entry("/etc/new/c", "c"), check=True).changed
    assert revert(root=str(node), check=True).changed
    assert stamps(node) == before
