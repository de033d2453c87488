"""The writer's packages against small models of apt and dnf, for what needs no real one: tests/lab has those."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from railwright.node.packages import locks
from railwright.node.state import InputError, Outcome, Said, apply, revert
from tests.unit.state_support import file_entry, fingerprint, items, make_node, plant

SOURCE = "/etc/apt/sources.list.d/railwright-x.sources"
ID = "packages:part"
# What there is: versions by name, oldest first, and what a version needs.
ARCHIVE: dict[str, dict[str, tuple[str, ...]]] = {
    "driver": {"1-1": ("tool",), "2-1": ("tool",)},
    "tool": {"5-1": ()},
    "other": {"1-1": (), "2-1": ()},
    "drags": {"1-1": ("other=2-1",)},
}


@dataclass
class Node:
    """Packages of one node, told and changed by the words of its package tools. dies: the next transaction is killed
    when it has unpacked."""

    root: Path
    standing: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    half: set[str] = field(default_factory=set)
    dies: bool = False
    moves: bool = False
    fails: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def changes(self, words: Sequence[str]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        waiting = list(words)
        while waiting:
            word = waiting.pop(0)
            name, _, version = word.partition("=")
            if word.endswith("-"):
                found[word[:-1]] = None
                continue
            version = version or self.standing.get(name) or list(ARCHIVE[name])[-1]
            if version not in ARCHIVE[name]:
                raise LookupError(f"E: Version '{version}' for '{name}' was not found")
            if self.standing.get(name) != version or name in self.half:
                found.setdefault(name, version)
            waiting += ARCHIVE[name][version]
        return {name: version for name, version in found.items() if version or name in self.standing}

    def carry_out(self, changes: dict[str, str | None]) -> None:
        for name, version in changes.items():
            if version is None:
                self.standing.pop(name)
                self.held.discard(name)
            else:
                self.standing[name] = version
            self.half.discard(name)
            if self.dies and version is not None:
                self.half.add(name)
        self.write()
        if self.dies:
            self.dies = False
            raise KeyboardInterrupt

    def upgrade(self) -> dict[str, str | None]:
        free = [name for name in self.standing if name not in self.held or self.moves]
        newest: dict[str, str | None] = {name: list(ARCHIVE[name])[-1] for name in free}
        return {name: version for name, version in newest.items() if self.standing[name] != version}

    def write(self) -> None:
        raise NotImplementedError

    def __call__(self, argv: Sequence[str]) -> Said:
        raise NotImplementedError


class Debian(Node):
    def carry_out(self, changes: dict[str, str | None]) -> None:
        # What dpkg unpacks is wanted from then on, and held no more.
        self.held.difference_update(changes)
        super().carry_out(changes)

    def write(self) -> None:
        stanzas = [
            f"Package: {name}\nStatus: {'hold' if name in self.held else 'install'} ok "
            f"{'half-configured' if name in self.half else 'installed'}\nArchitecture: amd64\nVersion: {version}\n"
            for name, version in sorted(self.standing.items())
        ]
        plant(self.root, "/var/lib/dpkg/status", "\n".join(stanzas))

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(" ".join(argv))
        for words, said in self.fails.items():
            if words in self.calls[-1]:
                return Said(100, err=said)
        if argv[0] == "apt-mark":
            self.held.update(argv[2:]) if argv[1] == "hold" else self.held.difference_update(argv[2:])
            self.write()
        elif argv[0] == "dpkg":
            self.half.clear()
            self.write()
        elif "update" in argv:
            plant(self.root, "/var/lib/apt/lists/x_Packages", "")
        else:
            return self.apt(argv)
        return Said(0)

    def apt(self, argv: Sequence[str]) -> Said:
        try:
            changes = (
                self.upgrade() if "dist-upgrade" in argv else self.changes(argv[argv.index("install") + 1 :])
            )
        except LookupError as error:
            return Said(100, err=str(error.args[0]))
        if "-s" in argv:
            lines = [
                f"Remv {name} [{self.standing[name]}]"
                if version is None
                else f"Inst {name} [{self.standing[name]}] ({version} X:x [amd64])"
                if name in self.standing
                else f"Inst {name} ({version} X:x [amd64])"
                for name, version in changes.items()
            ]
            return Said(0, "\n".join(lines))
        if "-d" not in argv:
            self.carry_out(changes)
        return Said(0)


class Rocky(Node):
    def write(self) -> None:
        plant(self.root, "/var/lib/rpm/rpmdb.sqlite", "")

    def locks(self) -> Path:
        return self.root / "etc/dnf/plugins/versionlock.list"

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(" ".join(argv))
        for words, said in self.fails.items():
            if words in self.calls[-1]:
                return Said(1, err=said)
        if argv[0] == "rpm":
            rows = (f"{name}\t0\t{version}\tnoarch\n" for name, version in self.standing.items())
            return Said(0, "".join(rows))
        if "versionlock" in argv:
            at = argv.index("versionlock") + 1
            names = argv[at + 1 :]
            self.held.update(names) if argv[at] == "add" else self.held.difference_update(names)
            lines = "".join(f"{name}-0:{self.standing.get(name, '0-0')}.*\n" for name in sorted(self.held))
            plant(self.root, "/etc/dnf/plugins/versionlock.list", lines)
            return Said(0)
        return self.dnf(argv)

    def dnf(self, argv: Sequence[str]) -> Said:
        if "upgrade" in argv:
            changes = self.upgrade()
        elif "remove" in argv:
            changes = self.changes([f"{name}-" for name in argv[argv.index("remove") + 1 :]])
        elif "install" in argv:
            words = ["{}={}-{}".format(*word.rsplit("-", 2)) for word in argv[argv.index("install") + 1 :]]
            try:
                changes = self.changes(words)
            except LookupError:
                return Said(1, err=f"Error: Unable to find a match: {words[0]}")
        else:
            return Said(0)
        if "--assumeno" in argv:
            gone = "".join(
                f" {name} noarch {self.standing[name]} @x 1 k\n" for name, to in changes.items() if to is None
            )
            come = "".join(f" {name} noarch {to} x 1 k\n" for name, to in changes.items() if to is not None)
            table = f"Dependencies resolved.\nInstalling:\n{come}Removing:\n{gone}\nTransaction Summary\n"
            return Said(1, table, "Operation aborted.")
        if "--downloadonly" not in argv:
            self.carry_out(changes)
        return Said(0)


SYSTEMS: dict[str, type[Node]] = {"dpkg": Debian, "rpm": Rocky}


@pytest.fixture(params=SYSTEMS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    made = SYSTEMS[request.param](make_node(tmp_path / "node"), {"other": "1-1"})
    made.write()
    plant(made.root, SOURCE, "")
    return made


@pytest.fixture
def debian(tmp_path: Path) -> Debian:
    made = Debian(make_node(tmp_path / "node"), {"other": "1-1"})
    made.write()
    return made


def wanted(node: Node, versions: dict[str, Any], **more: Any) -> dict[str, Any]:
    system = "dpkg" if isinstance(node, Debian) else "rpm"
    return {
        "part": [
            {"kind": "packages", "name": "part", "system": system, "versions": versions, "wait": 0, **more}
        ]
    }


def do(node: Node, versions: dict[str, Any], check: bool = False, **more: Any) -> Outcome:
    return apply(wanted(node, versions, **more), root=str(node.root), tools=node, check=check)


def undo(node: Node) -> Outcome:
    return revert(root=str(node.root), tools=node)


def why(outcome: Outcome) -> str:
    return " | ".join(failure.why for failure in outcome.failures)


def test_a_set_comes_is_held_stays_and_goes_with_what_came_with_it(node: Node) -> None:
    before = fingerprint(node.root)
    told = items(do(node, {"driver": "1-1"}, check=True), "part")[ID]
    assert (told["action"], told["note"]) == ("install+hold", "with them: tool 5-1 comes")
    assert fingerprint(node.root) == before
    assert why(do(node, {"driver": "1-1"})) == ""
    assert (node.standing, node.held) == ({"other": "1-1", "driver": "1-1", "tool": "5-1"}, {"driver"})
    calls = len(node.calls)
    again = do(node, {"driver": "1-1"})
    assert (again.changed, [call for call in node.calls[calls:] if "install" in call]) == (False, [])
    assert why(undo(node)) == ""
    assert (node.standing, node.held) == ({"other": "1-1"}, set())


def test_a_version_moves_up_and_down_and_back_to_the_first(node: Node) -> None:
    for version in ("2-1", "1-1", "2-1"):
        assert why(do(node, {"other": version})) == ""
        assert (node.standing, node.held) == ({"other": version}, {"other"})
    assert why(undo(node)) == ""
    assert (node.standing, node.held) == ({"other": "1-1"}, set())


def test_a_name_that_is_left_out_later_goes_back_by_itself(node: Node) -> None:
    do(node, {"other": "2-1", "tool": "5-1"})
    assert why(do(node, {"other": "2-1"})) == ""
    assert (node.standing, node.held) == ({"other": "2-1"}, {"other"})


def test_the_kernel_that_runs_stays_when_the_policy_names_the_next_one(
    debian: Debian, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = "linux-image-6.1.0-49-amd64", "linux-image-6.1.0-50-amd64"
    monkeypatch.setitem(ARCHIVE, old, {"6.1.1-1": ()})
    monkeypatch.setitem(ARCHIVE, new, {"6.1.2-1": ()})
    plant(debian.root, "/proc/sys/kernel/osrelease", "6.1.0-49-amd64\n")
    assert why(do(debian, {old: "6.1.1-1"})) == ""
    told = items(do(debian, {new: "6.1.2-1"}), "part")[ID]
    assert told["note"] == f"{old} stays: the kernel that runs is of it"
    assert debian.standing == {"other": "1-1", old: "6.1.1-1", new: "6.1.2-1"}
    assert do(debian, {new: "6.1.2-1"}).changed is False
    plant(debian.root, "/proc/sys/kernel/osrelease", "6.1.0-50-amd64\n")
    assert "boot another kernel" in undo(debian).failures[0].remedy
    assert new in debian.standing
    plant(debian.root, "/proc/sys/kernel/osrelease", "6.1.0-49-amd64\n")
    assert why(undo(debian)) == ""
    assert debian.standing == {"other": "1-1", old: "6.1.1-1"}


def test_what_must_not_be_there_goes_and_comes_back(node: Node) -> None:
    assert why(do(node, {"tool": "5-1", "other": None})) == ""
    assert node.standing == {"tool": "5-1"}
    assert why(undo(node)) == ""
    assert node.standing == {"other": "1-1"}


def test_a_package_that_nobody_named_is_not_moved_unless_it_may(debian: Debian) -> None:
    assert "other 1-1 -> 2-1" in why(do(debian, {"drags": "1-1"}))
    assert debian.standing == {"other": "1-1"}
    assert why(do(debian, {"drags": "1-1"}, may_change=["other"])) == ""
    assert debian.standing == {"drags": "1-1", "other": "2-1"}
    assert why(undo(debian)) == ""
    assert debian.standing == {"other": "1-1"}


def test_a_version_that_no_archive_has_is_told(node: Node) -> None:
    assert "have no" in why(do(node, {"other": "9-1"}))
    assert node.standing == {"other": "1-1"}


def test_a_hold_that_an_upgrade_does_not_heed_fails_the_run(node: Node) -> None:
    node.moves = True
    assert "a simulated upgrade would move them all the same" in why(do(node, {"driver": "1-1"}))


def test_without_a_hold_nothing_is_held(node: Node) -> None:
    assert why(do(node, {"driver": "1-1"}, hold=False)) == ""
    assert node.held == set()


def test_a_transaction_that_was_killed_is_brought_to_its_end(debian: Debian) -> None:
    debian.dies = True
    with pytest.raises(KeyboardInterrupt):
        do(debian, {"driver": "1-1"})
    assert debian.half == {"driver", "tool"}
    told = items(do(debian, {"driver": "1-1"}, check=True), "part")[ID]
    assert "an earlier transaction was interrupted" in told["note"]
    assert why(do(debian, {"driver": "1-1"})) == ""
    assert (debian.half, debian.held) == (set(), {"driver"})
    assert why(undo(debian)) == ""
    assert debian.standing == {"other": "1-1"}


@pytest.mark.parametrize("held", [False, True])
def test_what_was_held_before_a_run_that_was_killed_is_held_after_its_way_back_and_nothing_else(
    node: Node, held: bool
) -> None:
    node.held.update({"other"} if held else ())
    if held:
        node(
            ["dnf", "versionlock", "add", "other"]
            if isinstance(node, Rocky)
            else ["apt-mark", "hold", "other"]
        )
    node.write()
    node.dies = True
    with pytest.raises(KeyboardInterrupt):
        do(node, {"other": "2-1"})
    assert node.standing == {"other": "2-1"}
    assert why(undo(node)) == ""
    assert (node.standing, node.held) == ({"other": "1-1"}, {"other"} if held else set())


def test_a_package_that_dpkg_wants_installed_anew_is_not_taken_for_whole(debian: Debian) -> None:
    status = debian.root / "var/lib/dpkg/status"
    status.write_text(status.read_text("utf-8").replace("ok installed", "reinstreq installed"), "utf-8")
    # dpkg(1): with this flag a package "is broken and requires reinstallation".
    debian.half.add("other")
    assert why(do(debian, {"other": "1-1"})) == ""
    assert any("--reinstall" in call and call.endswith("install other=1-1") for call in debian.calls)
    assert "other\nStatus: hold ok installed" in status.read_text("utf-8")


def test_what_dpkg_noted_beside_its_record_counts(debian: Debian) -> None:
    noted = "Package: driver\nStatus: install ok unpacked\nArchitecture: amd64\nVersion: 1-1\n"
    plant(debian.root, "/var/lib/dpkg/updates/0003", noted)
    told = items(do(debian, {"driver": "1-1"}, check=True), "part")[ID]
    assert told["before"]["version:driver"] == "1-1 unpacked"


@pytest.mark.parametrize("words", ["-d", "--downloadonly", "versionlock add", "apt-mark hold"])
def test_a_tool_that_fails_is_told_in_its_own_words(node: Node, words: str) -> None:
    key = f" {words} " if words.startswith("-") else words
    node.fails[key] = "E: something odd"
    outcome = do(node, {"driver": "1-1"})
    assert any(key in call for call in node.calls) == ("something odd" in why(outcome))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("rpm -qa", "rpm -qa"),
        ("--assumeno --cacheonly upgrade", "a simulated upgrade fails"),
        ("versionlock add", "dnf has no versionlock"),
    ],
)
def test_dnfs_own_troubles_are_told(tmp_path: Path, argv: str, says: str) -> None:
    node = Rocky(make_node(tmp_path / "node"), {"other": "1-1"})
    node.write()
    node.fails[argv] = "No such command: versionlock. Please use /usr/bin/dnf --help"
    assert says in why(do(node, {"other": "2-1"}))


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_node_without_the_package_system_is_told(tmp_path: Path, system: str) -> None:
    root = make_node(tmp_path / "node")
    entry = {"kind": "packages", "name": "part", "system": system, "versions": {"x": "1"}}
    (failure,) = apply({"part": [entry]}, root=str(root), tools=lambda argv: Said(None)).failures
    assert failure.why in ("the node has no rpm", "the node has no /var/lib/dpkg/status")


def test_a_folder_that_is_no_node_runs_no_program(debian: Debian) -> None:
    (failure,) = apply(wanted(debian, {"driver": "1-1"}), root=str(debian.root)).failures
    assert "is no running node" in failure.why


def test_a_source_that_is_not_there_yet_is_said_by_a_check_and_refused_by_a_run(node: Node) -> None:
    missing = ["/etc/apt/sources.list.d/later.sources"]
    told = items(do(node, {"driver": "1-1"}, check=True, sources=missing), "part")[ID]
    assert (told["changed"], "is not there yet" in told["note"]) == (True, True)
    assert "no index knows these versions" in why(do(node, {"driver": "1-1"}, sources=missing))


def test_an_archive_that_changed_since_it_was_looked_at_is_not_used(debian: Debian) -> None:
    simulate: Callable[[Sequence[str]], Said] = debian.apt
    answers = []

    def changed(argv: Sequence[str]) -> Said:
        said = simulate(argv)
        answers.append(argv)
        return (
            Said(0, said.out + "\nInst late (1 X:x [amd64])") if "-s" in argv and len(answers) > 1 else said
        )

    debian.apt = changed  # type: ignore[method-assign]
    assert "the archives have changed" in why(do(debian, {"other": "2-1"}))


def test_a_transaction_that_says_it_went_well_is_looked_at(debian: Debian) -> None:
    debian.carry_out = lambda changes: None  # type: ignore[method-assign]
    assert "other was to be 2-1 and is 1-1" in why(do(debian, {"other": "2-1"}))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("E: Failed to fetch https://bob:se@cret/x@h/a.deb  404  Not Found", "Failed to fetch https://***@h/a.deb"),
        ("E: The repository 'tor+https://bob:secret@h/d x Release' does not have a Release file.", "at tor+https://***@h"),
        ("E: Redirection from https to 'http://bob:secret@h/' is forbidden", "from https to 'http://***@h/'"),
        ("E: something odd at ftp://bob:secret@h/", "odd at ftp://***@h/"),
    ],
)  # fmt: skip
def test_what_apt_says_is_told_without_a_password_whether_its_cause_is_known_or_not(
    debian: Debian, said: str, told: str
) -> None:
    debian.fails["install"] = said
    (failure,) = do(debian, {"other": "2-1"}).failures
    assert told in failure.why
    assert not {"bob", "secret", "cret"} & set(failure.why.replace("/", ":").replace("@", ":").split(":"))


def test_a_lock_is_told_with_its_holder(debian: Debian) -> None:
    path = plant(debian.root, locks.DPKG[0], "")
    program = (
        "import fcntl,sys\nf=open(sys.argv[1],'w')\nfcntl.lockf(f,fcntl.LOCK_EX)\n"
        "print(1,flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        said = why(do(debian, {"other": "2-1"}))
        unchanged = do(debian, {"other": "1-1"}, hold=False)
        holder.communicate("")
    assert f"{locks.DPKG[0]} is held by a process (process {holder.pid})" in said
    assert why(unchanged) == "", "where nothing is to be done nobody is in the way"
    assert why(do(debian, {"other": "2-1"})) == ""


def test_dnfs_lock_is_a_file_with_a_living_process(tmp_path: Path) -> None:
    path = plant(tmp_path, "/lock.pid", str(os.getpid()))
    assert locks.named_process(str(path)) == os.getpid()
    path.write_text("999999999")
    assert locks.named_process(str(path)) is None
    assert locks.named_process(str(tmp_path / "none")) is None
    assert f"(process {os.getpid()})" in locks.process_words(os.getpid())
    assert "another container" in locks.process_words(-1)


BAD = [
    ({"versions": {}}, "names nothing"),
    ({"versions": {"x": "1.*"}}, "to the last digit"),
    ({"versions": {"nvidia-*": "1"}}, "is no name of a package"),
    ({"versions": {"x": 5}}, "expected text"),
    ({"versions": {"x": "1"}, "system": "pacman"}, "one of dpkg, rpm"),
    ({"versions": {"x": "1"}, "may_change": ["y*"]}, "name it exactly"),
    ({"versions": {"x": "1"}, "may_change": [5]}, "expected text"),
    ({"versions": {"x": "1"}, "sources": ["x"]}, "is not absolute"),
    ({"versions": {"x": "1"}, "wait": -1}, "out of range"),
    ({"versions": {"x": "1"}, "name": "A B"}, "is no name"),
]


@pytest.mark.parametrize(("more", "says"), BAD, ids=[row[1] for row in BAD])
def test_what_is_no_set_of_packages_is_refused(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    entry = {"kind": "packages", "system": "dpkg", **more}
    with pytest.raises(InputError, match=says):
        apply({"part": [entry]}, root=str(make_node(tmp_path / "node")))


# -- the index --


def index(debian: Debian, **more: Any) -> dict[str, Any]:
    entry = {"kind": "package_index", "system": "dpkg", "sources": [SOURCE], "wait": 0, **more}
    return {"sources": [{"kind": "file", "path": SOURCE, "content": "Types: deb\n"}, entry]}


def test_an_index_is_refreshed_for_a_new_source_and_then_no_more(debian: Debian) -> None:
    first = apply(index(debian), root=str(debian.root), tools=debian)
    assert items(first, "sources")["package_index:node"]["action"] == "refresh"
    assert f"Dir::Etc::SourceList={SOURCE}" in debian.calls[-1]
    assert not apply(index(debian), root=str(debian.root), tools=debian).changed
    os.utime(debian.root / SOURCE[1:])
    assert apply(index(debian), root=str(debian.root), tools=debian).changed
    assert revert(root=str(debian.root), tools=debian).failures == ()
    assert not (debian.root / SOURCE[1:]).exists()


def test_a_refresh_that_failed_is_told_and_tried_again(debian: Debian) -> None:
    debian.fails["update"] = "W: GPG error: https://x InRelease: EXPKEYSIG A4B469963BF863CC cudatools"
    assert "signing key A4B469963BF863CC has expired" in why(
        apply(index(debian), root=str(debian.root), tools=debian)
    )
    debian.fails.clear()
    assert apply(index(debian), root=str(debian.root), tools=debian).failures == ()
    assert "/etc/apt/sources.list.d" in debian.calls[-1]


def test_a_refresh_that_leaves_no_list_is_no_success(debian: Debian) -> None:
    outcome = apply(index(debian), root=str(debian.root), tools=lambda argv: Said(0))
    assert "/var/lib/apt/lists is not there after a refresh" in why(outcome)


def test_dnf_refreshes_the_one_repository(tmp_path: Path) -> None:
    node = Rocky(make_node(tmp_path / "node"))
    (node.root / "var/cache/dnf").mkdir(parents=True)
    source = plant(node.root, "/etc/yum.repos.d/railwright-x.repo", "")
    entry = {
        "kind": "package_index",
        "system": "rpm",
        "sources": ["/etc/yum.repos.d/railwright-x.repo"],
        "wait": 0,
    }
    assert apply({"sources": [entry]}, root=str(node.root), tools=node).failures == ()
    assert "--enablerepo=railwright-x --refresh makecache" in node.calls[-1]
    assert source.exists()


# -- the same value in many files --

GOVERNOR = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


def governors(node: Path) -> list[str]:
    return [
        (node / f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor").read_text().strip()
        for n in range(3)
    ]


def test_every_cpu_gets_the_value_and_its_own_back(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    for n, word in enumerate(["powersave", "performance", "schedutil"]):
        plant(node, f"/sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor", f"{word}\n")
    entry = {"kind": "sysfs_each", "path": GOVERNOR, "value": "performance"}
    assert apply({"kernel": [entry]}, root=str(node)).failures == ()
    assert governors(node) == ["performance"] * 3
    assert not apply({"kernel": [entry]}, root=str(node)).changed
    assert revert(root=str(node)).failures == ()
    assert governors(node) == ["powersave", "performance", "schedutil"]


def test_a_pattern_that_fits_nothing_or_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    entry = {"kind": "sysfs_each", "path": GOVERNOR, "value": "performance"}
    (failure,) = apply({"kernel": [entry]}, root=str(node)).failures
    assert "the kernel has no" in failure.why
    for path in ("/etc/*", "/sys/**/x", "/sys/../etc/x"):
        with pytest.raises(InputError):
            apply({"kernel": [{**entry, "path": path}]}, root=str(node))


def test_two_entries_for_one_file_are_refused(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    one = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    plant(node, one, "powersave\n")
    many = {"kind": "sysfs_each", "path": GOVERNOR, "value": "performance"}
    with pytest.raises(InputError, match="both own"):
        apply({"a": [many], "b": [{"kind": "sysfs", "path": one, "value": "powersave"}]}, root=str(node))


def test_a_revert_of_everything_leaves_the_slices_that_are_excepted(debian: Debian) -> None:
    slices = {**wanted(debian, {"tool": "5-1"}), "tuned": [file_entry("/etc/x.conf", "1\n")]}
    assert apply(slices, root=str(debian.root), tools=debian).failures == ()
    left = revert(but=["part", "not-there"], root=str(debian.root), tools=debian)
    assert (sorted(left.slices), left.failures) == (["tuned"], ())
    assert (debian.standing["tool"], (debian.root / "etc/x.conf").exists()) == ("5-1", False)
    assert revert(["part"], but=["part"], root=str(debian.root), tools=debian).changed
    assert "tool" not in debian.standing
