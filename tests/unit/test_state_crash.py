"""What no other test can show: a run that is killed at every system call that changes something, and a check that
makes none. strace is the witness."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply, revert
from tests.unit.state_support import Systemd, file_entry, fingerprint, items, make_node, plant

SOURCE = Path(__file__).resolve().parents[2] / "src"
# Every system call by which a file system, an owner, a mode or a time can change.
MUTATING = (
    "mkdir,mkdirat,rmdir,rename,renameat,renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,"
    "fchmod,fchmodat,chown,fchown,lchown,fchownat,truncate,ftruncate,fallocate,utime,utimes,utimensat,futimesat,"
    "setxattr,lsetxattr,fsetxattr,removexattr,lremovexattr,fremovexattr,write,pwrite64,writev,pwritev,pwritev2,"
    "sendfile,copy_file_range,splice,mount,umount2,fsync,fdatasync,sync,flock"
)
# Waits for "verb root slices" lines; for each it forks a child, which waits for one more line and then runs.
PROGRAM = f"""
import json, os, sys
sys.path.insert(0, {str(SOURCE)!r})
from railwright.node.state import apply, revert

def act(verb, root, slices):
    if verb == "check":
        apply(slices, root=root, check=True)
        revert(root=root, check=True)
    elif verb == "apply":
        apply(slices, root=root)
    else:
        revert(root=root)

say = lambda text: os.write(1, (text + chr(10)).encode())
for line in iter(sys.stdin.readline, ""):
    begin, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin, 1)
        act(*json.loads(line))
        os._exit(0)
    say(str(child))
    sys.stdin.readline()
    os.write(go, b"!")
    os.close(begin)
    os.close(go)
    say(str(os.waitpid(child, 0)[1]))
"""


class Traced:
    """Runs of the writer in fresh processes, each under strace from its first own system call on."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.server = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, verb: str, node: Path, slices: Any, *options: str) -> int:
        """The wait status of the run: 0, or the number of the signal that ended it."""
        child = self._ask(json.dumps([verb, str(node), slices]))
        tracer = subprocess.Popen(
            ["strace", "-o", str(self.log), *options, "-p", str(child)], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        status = self._ask("go")
        tracer.communicate()
        return status

    def end(self) -> None:
        self.server.communicate("")

    def _ask(self, line: str) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(line, file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline())


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    runs = Traced(tmp_path / "trace")
    yield runs
    runs.end()


def mutations(log: Path) -> list[str]:
    """The calls of a trace that may change something; opens only where they may create or write."""
    return [
        line
        for line in log.read_text().splitlines()
        if re.search(r"^creat|O_(CREAT|WRONLY|RDWR|TRUNC|TMPFILE)", line)
        or not re.match(r"open|\+\+\+|---", line)
    ]


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
    assert traced.run("check", node, slices, "-e", calls) == 0
    assert mutations(traced.log) == []
    # The same eyes see a run that does write.
    assert traced.run("apply", node, slices, "-e", calls) == 0
    assert sum("rename" in line for line in mutations(traced.log)) >= 4


def test_a_file_and_the_folder_that_names_it_are_synced_around_every_rename(
    node: Path, traced: Traced
) -> None:
    plant(node, "/etc/old", "old\n")
    slices = {"part": [file_entry("/etc/old", "new\n"), file_entry("/etc/deep/new", "new\n")]}
    assert traced.run("apply", node, slices, "-e", f"trace=openat,{MUTATING}") == 0
    calls = [line.split("(", 1)[0] for line in mutations(traced.log)]
    around = {tuple(calls[n - 1 : n + 2]) for n, name in enumerate(calls) if name.startswith("rename")}
    assert around in ({("fsync", "rename", "fsync")}, {("fsync", "renameat", "fsync")})
    # A new folder is synced into the one above it; what was made under a mode of 0600 gets its own before its content.
    assert [calls[n + 1] for n, name in enumerate(calls) if name.startswith("mkdir")] == ["fsync"] * 2
    text = traced.log.read_text()
    assert re.search(r'openat\(\d+, "\.new\.railwright", O_WRONLY\|O_CREAT\|O_EXCL[^,]*, 0600\)', text)
    assert calls.count("fchmod") == calls.count("fchown") == sum(name.startswith("rename") for name in calls)


def allowed(path: Path, states: list[tuple[str, int] | None]) -> bool:
    """Whether a file is one of these, content and mode together."""
    if not path.exists():
        return None in states
    return (path.read_text(), path.stat().st_mode & 0o777) in states


def test_a_run_that_is_killed_anywhere_leaves_old_or_new_and_the_next_one_ends_it(
    tmp_path: Path, traced: Traced
) -> None:
    slices = {"part": [file_entry("/etc/old", "new\n", mode="0600"), file_entry("/etc/deep/er/new", "new\n")]}
    template = make_node(tmp_path / "template")
    plant(template, "/etc/old", "old\n", 0o644)
    start = fingerprint(template)
    # flock too: between the making of the lock file and its holding there is a moment.
    calls = f"openat,{MUTATING}"

    def fresh(number: str) -> Path:
        return Path(shutil.copytree(template, tmp_path / number, symlinks=True))

    def points(verb: str, node: Path) -> list[tuple[str, int]]:
        """Each call that changes something, as the how manieth of its name it is."""
        assert traced.run(verb, node, slices, "-e", f"trace={calls}") == 0
        counts: dict[str, int] = {}
        found = []
        changing = mutations(traced.log)
        for line in traced.log.read_text().splitlines():
            name = line.split("(", 1)[0]
            counts[name] = counts.get(name, 0) + 1
            if line in changing:
                found.append((name, counts[name]))
        return found

    applied = fresh("applied")
    to_apply = points("apply", applied)
    done = fingerprint(applied)
    reverted = fresh("reverted")
    apply(slices, root=str(reverted))
    to_revert = points("revert", reverted)
    assert fingerprint(reverted) == start
    assert len(to_apply) > 25
    assert len(to_revert) > 12

    for verb, sweep in (("apply", to_apply), ("revert", to_revert)):
        for number, (name, which) in enumerate(sweep):
            node = fresh(f"{verb}-{number}")
            if verb == "revert":
                apply(slices, root=str(node))
            kill = f"inject={name}:signal=KILL:when={which}"
            assert traced.run(verb, node, slices, "-e", f"trace={name}", "-e", kill) == signal.SIGKILL
            place = f"{verb} killed at {name} number {which}"
            assert allowed(node / "etc/old", [("old\n", 0o644), ("new\n", 0o600)]), place
            assert allowed(node / "etc/deep/er/new", [None, ("new\n", 0o644)]), place
            again = apply(slices, root=str(node)) if verb == "apply" else revert(root=str(node))
            assert again.failures == (), place
            end = fingerprint(node)
            if verb == "apply":
                expected = {path: state[:4] for path, state in done.items()}
                # Times of writing differ, and so does the record that tells them.
                found = {path: state[:4] for path, state in end.items()}
                expected.pop("var/lib/railwright/state.json")
                found.pop("var/lib/railwright/state.json")
                assert found == expected, place
                assert not apply(slices, root=str(node)).changed, place
                revert(root=str(node))
            assert fingerprint(node) == start, place


WORDS = ["", "a\n", "b\n", "a longer text\n" * 50]


def drift(node: Path, rng: random.Random) -> None:
    """Things that happen to a node: files edited, removed, re-moded, replaced by links or folders; values set."""
    for path in ("etc/one", "etc/two", "etc/deep/three"):
        place = node / path
        what = rng.choice(["keep", "keep", "edit", "remove", "mode", "link", "folder"])
        if what == "keep":
            continue
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        elif os.path.lexists(place):
            place.unlink()
        place.parent.mkdir(exist_ok=True)
        if what == "edit":
            place.write_text(rng.choice(WORDS))
        elif what == "mode":
            place.write_text("a\n")
            place.chmod(rng.choice([0o600, 0o640, 0o755]))
        elif what == "link":
            place.symlink_to("two")
        elif what == "folder":
            place.mkdir()
    documents = ["{}", '{"a": 1, "c": {}}', '{"b": {"c": [1]}}', "nonsense", '{"a": 7}']
    (node / "etc/d.json").write_text(rng.choice(documents))
    (node / "proc/sys/vm").mkdir(exist_ok=True)
    (node / "proc/sys/vm/swappiness").write_text(rng.choice(["60\n", "10\n"]))


def wishes(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    entries: list[dict[str, Any]] = [
        file_entry("/etc/one", rng.choice(WORDS), mode=rng.choice(["0644", "0600"])),
        file_entry("/etc/two", rng.choice(WORDS)),
        file_entry("/etc/deep/three", rng.choice(WORDS)),
        {
            "kind": "json_keys",
            "path": "/etc/d.json",
            "keys": {"/a": rng.choice([1, 2]), "/b/c": rng.choice([[1], "x"])},
        },
        {"kind": "sysctl", "name": "vm.swappiness", "value": rng.choice(["10", "20"])},
        {
            "kind": "systemd_unit",
            "name": "one.service",
            "state": "started",
            "restart_if_older_than": ["/etc/one"],
        },
    ]
    picked = [entry for entry in entries if rng.random() < 0.7]
    cut = rng.randrange(len(picked) + 1)
    return {"first": picked[:cut], "second": picked[cut:]}


@pytest.mark.parametrize("seed", range(20))
def test_a_check_foretells_what_the_run_then_does_on_a_node_that_drifted(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a seed that gives the same drift again
    node = make_node(tmp_path / "node")
    systemd = Systemd(node)
    plant(node, "/etc/systemd/system/one.service", "[Service]\n")
    for _ in range(6):
        drift(node, rng)
        slices = wishes(rng)
        before = fingerprint(node)
        foretold = apply(slices, root=str(node), check=True, runner=systemd)
        assert fingerprint(node) == before
        done = apply(slices, root=str(node), runner=systemd)
        assert done.to_json() == foretold.to_json()
        again = apply(slices, root=str(node), runner=systemd)
        assert not again.changed
        assert [failure.why for failure in again.failures] == [failure.why for failure in done.failures]
        for name, entries in slices.items():
            for entry in entries:
                told = items(done, name)
                if entry["kind"] == "file" and not any(
                    entry["path"] in failure.where for failure in done.failures
                ):
                    assert (node / entry["path"][1:]).read_text() == entry["content"]
                    assert told[f"file:{entry['path']}"]["kind"] == "file"
    foretold = revert(root=str(node), check=True, runner=systemd)
    assert revert(root=str(node), runner=systemd).to_json() == foretold.to_json()
    assert not (node / "var/lib/railwright").exists()


@pytest.mark.parametrize("seed", range(10))
def test_a_revert_after_any_row_of_runs_gives_the_node_back_as_it_was(tmp_path: Path, seed: int) -> None:
    rng = random.Random(1000 + seed)  # noqa: S311 - as above
    node = make_node(tmp_path / "node")
    systemd = Systemd(node)
    plant(node, "/etc/systemd/system/one.service", "[Service]\n")
    drift(node, rng)
    for path in node.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, ns=(1, rng.randrange(10**18)))
    values = {path: path.read_text() for path in (node / "proc").rglob("*") if path.is_file()}
    before = {path: state for path, state in fingerprint(node).items() if not path.startswith("proc")}
    for _ in range(5):
        apply(wishes(rng), root=str(node), runner=systemd)
    order: list[list[str] | None] = [["first"], ["second"]]
    rng.shuffle(order)
    for names in order if rng.random() < 0.5 else [None]:
        assert revert(names, root=str(node), runner=systemd).failures == ()
    assert {path: state for path, state in fingerprint(node).items() if not path.startswith("proc")} == before
    assert {path: path.read_text() for path in values} == values
