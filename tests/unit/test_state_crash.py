"""What no other test can show: a run that is killed at every system call that changes something, and a check that
makes none. strace is the witness.

A sweep takes a part of its points in each run (`tests.rotation`) and all of them with RAILWRIGHT_LONG=1.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply, revert
from tests.rotation import share
from tests.unit.crash_support import GOOD, MUTATING, Service, Traced, mutations
from tests.unit.kind_nodes import KINDS, SECRET, UNIT, UNIT_FILE, Kind, elder, every_kind
from tests.unit.state_support import Systemd, file_entry, fingerprint, make_node, plant
from tests.unit.wired_kinds import WIRED, Driver

RECORD = "var/lib/railwright/state.json"
TEMPORARY = re.compile(r"\.(.+)\.railwright")
# What a run keeps for itself: it comes and goes with the run, and the record tells of its time.
OWN = re.compile(r"run(/railwright.*)?|var/lib|var/lib/railwright(/.*)?")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def test_a_check_makes_no_system_call_that_changes_anything(node: Path, traced: Traced) -> None:
    plant(node, "/etc/old", "old\n")
    plant(node, "/etc/d.json", '{"a": 1}')
    plant(node, "/proc/sys/vm/swappiness", "60\n")
    slices = {
        "part": [
            file_entry("/etc/old", "new\n"),
            file_entry("/etc/deep/new", "new\n"),
            {"kind": "json_keys", "path": "/etc/d.json", "keys": {"/b": 2}},
            {"kind": "sysctl", "name": "vm.swappiness", "value": "10"},
        ]
    }
    apply({"part": [file_entry("/etc/gone", "x\n")]}, root=str(node))
    calls = f"trace=open,openat,openat2,creat,{MUTATING}"
    assert traced.run("check", node, slices, "-e", calls) == GOOD
    assert mutations(traced.log) == []
    # The same eyes see a run that does write.
    assert traced.run("apply", node, slices, "-e", calls) == GOOD
    assert sum("rename" in line for line in mutations(traced.log)) >= 4


def test_a_file_and_the_folder_that_names_it_are_synced_around_every_rename(
    node: Path, traced: Traced
) -> None:
    plant(node, "/etc/old", "old\n")
    slices = {"part": [file_entry("/etc/old", "new\n"), file_entry("/etc/deep/new", "new\n")]}
    assert traced.run("apply", node, slices, "-e", f"trace=openat,{MUTATING}") == GOOD
    calls = [line.split("(", 1)[0] for line in mutations(traced.log)]
    around = {tuple(calls[n - 1 : n + 2]) for n, name in enumerate(calls) if name.startswith("rename")}
    assert around in ({("fsync", "rename", "fsync")}, {("fsync", "renameat", "fsync")})
    # A new folder is synced into the one above it; what was made under a mode of 0600 gets its own before its content.
    assert [calls[n + 1] for n, name in enumerate(calls) if name.startswith("mkdir")] == ["fsync"] * 2
    text = traced.log.read_text()
    assert re.search(r'openat\(\d+, "\.new\.railwright", O_WRONLY\|O_CREAT\|O_EXCL[^,]*, 0600\)', text)
    assert calls.count("fchmod") == calls.count("fchown") == sum(name.startswith("rename") for name in calls)


@dataclass(frozen=True)
class Stand:
    """A node and its systemd, to be copied."""

    node: Path
    systemd: Systemd

    def copy(self, to: Path) -> Stand:
        shutil.copytree(self.node, to, symlinks=True)
        systemd = Systemd(to, booted=False)
        systemd.loaded, systemd.enabled = dict(self.systemd.loaded), dict(self.systemd.enabled)
        systemd.since = dict(self.systemd.since)
        return Stand(to, systemd)

    def picture(self) -> dict[str, Any]:
        """Everything that the run is there for: names, kinds, modes, owners and content; units with what they load."""
        tree = {
            path: state[:4] for path, state in fingerprint(self.node).items() if OWN.fullmatch(path) is None
        }
        stale = [name for name, stamp in self.systemd.loaded.items() if stamp != self.systemd._stamp(name)]
        stale += [UNIT] if self.restart_is_owed() else []
        return {**tree, "units": (sorted(self.systemd.enabled), sorted(self.systemd.since), stale)}

    def restart_is_owed(self) -> bool:
        """Whether the unit runs with a configuration that is not the one on the node any more."""
        since = self.systemd.since.get(UNIT)
        files = [self.node / "etc/rail.conf", self.node / UNIT_FILE[1:]]
        # A run takes no account of less than what systemd tells: microseconds.
        return (
            since is not None
            and max(file.stat().st_mtime_ns for file in files) // 1000 > since.timestamp() * 10**6
        )

    def exact(self) -> dict[str, Any]:
        """All of it, with the times of files; those of values that stand for the kernel's mean nothing."""
        return {
            path: state[:4] if path.startswith(("proc/", "sys/")) else state
            for path, state in fingerprint(self.node).items()
        }


def as_the_kernel(stand: Stand, before: Stand) -> None:
    """The kernel's files are not emptied by being opened; the plain ones that stand for them are."""
    for folder in ("proc", "sys"):
        for path in (stand.node / folder).rglob("*"):
            if path.is_file() and path.stat().st_size == 0:
                path.write_text((before.node / path.relative_to(stand.node)).read_text())


def check_moment(stand: Stand, before: dict[str, Any], done: dict[str, Any], place: str) -> None:
    """Between any two system calls: each file is the old or the new one, and what is secret is for root alone."""
    found = fingerprint(stand.node)
    for path, state in found.items():
        file = stand.node / path
        temporary = TEMPORARY.fullmatch(file.name)
        if file.is_file() and SECRET in file.read_text():
            assert state[0] == "-rw-------", f"{place}: {path}"
        if path == RECORD:
            assert state[0] == "-rw-------", place
            json.loads(file.read_text())
        elif temporary is not None:
            target = str(Path(path).with_name(temporary[1]))
            finals = {tree[target][0] for tree in (before, done) if target in tree}
            assert state[0] in {"-rw-------", *finals}, f"{place}: {path}"
        elif OWN.fullmatch(path) is None:
            assert state[:4] in (before.get(path), done.get(path)), f"{place}: {path}"
    for path in before.keys() & done.keys() - {"units"}:
        assert path in found, f"{place}: {path} is gone"


def end_after(verb: str, stand: Stand, kind: Kind, tools: Any = None) -> Any:
    more = {"root": str(stand.node), "runner": stand.systemd, "tools": tools}
    return apply(kind.slices, **more) if verb == "apply" else revert(**more)


@pytest.mark.parametrize("what", ["first", "next", "revert"])
@pytest.mark.parametrize("name", [*KINDS, *WIRED, "every"])
def test_a_run_that_is_killed_anywhere_leaves_old_or_new_and_the_next_one_ends_it(
    tmp_path: Path, traced: Traced, service: Service, programs: Service, name: str, what: str
) -> None:
    kind = every_kind() if name == "every" else {**KINDS, **WIRED}[name]

    def wired(stand: Stand) -> Driver | None:
        """The programs of this node's driver, which go on when their caller is killed."""
        service.systemd = stand.systemd
        programs.programs = Driver(stand.node) if name in WIRED else None
        return programs.programs

    verb = "revert" if what == "revert" else "apply"
    first = Stand(*kind.node(tmp_path / "start"))
    start = first.exact()
    template = first
    if what != "first":
        template = first.copy(tmp_path / "applied")
        slices = kind.slices if what == "revert" else elder(kind)
        done_before = apply(slices, root=str(template.node), runner=template.systemd, tools=wired(template))
        assert done_before.failures == ()
    good = template.copy(tmp_path / "good")
    driver = wired(good)
    more: dict[str, Any] = {
        "systemctl": service.address,
        "umask": 0 if verb == "apply" else 0o077,
        "programs": programs.address if name in WIRED else "",
    }
    points = traced.points(verb, good.node, kind.slices, **more)
    assert len(points) > 10
    before, done = template.picture(), good.picture()
    owed = end_after(verb, good, kind, driver).reboot_needed
    assert (verb == "apply" and name in ("file", "every")) == (owed == ("file:/etc/old",))

    tried = share(points)
    for number, point in enumerate(tried):
        stand = template.copy(tmp_path / str(number))
        driver = wired(stand)
        traced.kill(point, verb, stand.node, kind.slices, **more)
        place = f"{what} killed at {point[0]} number {point[1]}"
        as_the_kernel(stand, template)
        check_moment(stand, before, done, place)
        again = end_after(verb, stand, kind, driver)
        assert again.failures == (), place
        assert again.reboot_needed == owed, place
        assert stand.picture() == done, place
        assert [path.name for path in stand.node.rglob("*.railwright")] == [], place
        assert not end_after(verb, stand, kind, driver).changed, place
        if verb == "apply":
            assert end_after("revert", stand, kind, driver).failures == ()
        assert stand.exact() == start, place
        shutil.rmtree(stand.node)
    print(f"{name}, {what}: {len(tried)} of {len(points)} points")
