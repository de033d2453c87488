"""Alternatives and the linker's cache, with the real update-alternatives and ldconfig on a small root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import InputError
from railwright.node.state import Said, apply, revert
from railwright.node.state.kinds import read_slices
from tests.unit.state_support import file_entry, item, items, make_node, plant

LINK, OLD, NEW = "/usr/local/cuda", "/usr/local/cuda-12.9", "/usr/local/cuda-13.0"
CONF = "/etc/ld.so.conf.d/00-ours.conf"
ENTRY = {"kind": "alternative", "name": "cuda", "link": LINK, "path": NEW}
pytestmark = pytest.mark.skipif(
    shutil.which("update-alternatives") is None or shutil.which("ldconfig", path="/sbin:/usr/sbin") is None,
    reason="no update-alternatives or ldconfig here",
)


@dataclass
class Programs:
    """The real ones, told that the node is a folder. kills: a program before which the run is killed."""

    root: Path
    kills: str = ""
    calls: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(" ".join(argv))
        if argv[0] == self.kills:
            raise KeyboardInterrupt
        real = {
            "update-alternatives": ["update-alternatives", "--root", str(self.root)],
            "ldconfig": ["/sbin/ldconfig", "-r", str(self.root)],
        }[argv[0]]
        done = subprocess.run([*real, *argv[1:]], capture_output=True, text=True, check=False)
        return Said(done.returncode, done.stdout, done.stderr)

    def query(self) -> dict[str, str]:
        done = subprocess.run(
            ["update-alternatives", "--root", str(self.root), "--query", "cuda"],
            capture_output=True,
            text=True,
            check=False,
        )
        return dict(line.split(": ", 1) for line in done.stdout.split("\n\n")[0].splitlines() if ": " in line)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    root = make_node(tmp_path / "node")
    for path in (OLD, NEW):
        plant(root, f"{path}/version.json", "{}")
    for name in ("etc/alternatives", "var/lib/dpkg/alternatives", "var/log"):
        (root / name).mkdir(parents=True)
    return root


def register(programs: Programs, path: str, priority: str) -> None:
    assert programs(["update-alternatives", "--install", LINK, "cuda", path, priority]).ok


def do(programs: Programs, entry: dict[str, Any] = ENTRY, **more: Any) -> Any:
    return apply({"part": [entry]}, root=str(programs.root), tools=programs, **more)


def test_the_link_leads_where_it_is_told_and_stays_when_a_newer_package_comes(node: Path) -> None:
    programs = Programs(node)
    register(programs, OLD, "129")
    first = do(programs)
    assert (first.failures, first.changed) == ((), True)
    assert (programs.query()["Status"], programs.query()["Value"]) == ("manual", NEW)
    assert os.readlink(node / "etc/alternatives/cuda") == NEW
    plant(node, "/usr/local/cuda-14.0/version.json", "{}")
    register(programs, "/usr/local/cuda-14.0", "140")
    assert programs.query()["Value"] == NEW
    assert not do(programs).changed


def test_a_revert_gives_the_choice_back_as_it_was(node: Path) -> None:
    programs = Programs(node)
    register(programs, OLD, "129")
    before = programs.query()
    do(programs)
    revert(["part"], root=str(node), tools=programs)
    after = programs.query()
    assert (after["Status"], after["Value"]) == (before["Status"], before["Value"]) == ("auto", OLD)


def test_without_a_group_one_is_made_and_goes_again(node: Path) -> None:
    programs = Programs(node)
    assert do(programs).failures == ()
    assert (programs.query()["Status"], programs.query()["Value"]) == ("manual", NEW)
    revert(["part"], root=str(node), tools=programs)
    assert programs.query() == {}
    assert not os.path.lexists(node / LINK[1:])


def choices(programs: Programs) -> dict[str, str]:
    """The whole group as the tool itself tells it: its choices with their priorities."""
    done = subprocess.run(
        ["update-alternatives", "--root", str(programs.root), "--query", "cuda"],
        capture_output=True,
        text=True,
        check=False,
    )
    blocks = [part for part in done.stdout.split("\n\n") if part.startswith("Alternative:")]
    rows = [dict(line.split(": ", 1) for line in block.splitlines() if ": " in line) for block in blocks]
    return {row["Alternative"]: row["Priority"] for row in rows}


def test_a_revert_takes_along_what_an_earlier_policy_registered(node: Path) -> None:
    programs = Programs(node)
    do(programs, {**ENTRY, "path": OLD})
    assert do(programs).failures == ()
    assert choices(programs) == {NEW: "1"}
    assert revert(["part"], root=str(node), tools=programs).failures == ()
    assert choices(programs) == {}
    assert not os.path.lexists(node / LINK[1:])


def test_a_group_that_was_there_has_the_same_choices_after_a_revert(node: Path) -> None:
    """One of them is somebody's own, with our priority."""
    programs = Programs(node)
    for path, priority in (("/usr/local/cuda-11.8", "1"), (OLD, "129")):
        plant(node, f"{path}/version.json", "{}")
        register(programs, path, priority)
    before = (programs.query(), choices(programs))
    do(programs)
    assert choices(programs) == {**before[1], NEW: "1"}
    assert revert(["part"], root=str(node), tools=programs).failures == ()
    assert (programs.query(), choices(programs)) == before


def test_what_a_package_registered_in_between_stays_after_a_revert(node: Path) -> None:
    programs = Programs(node)
    do(programs)
    register(programs, OLD, "129")
    assert revert(["part"], root=str(node), tools=programs).failures == ()
    assert choices(programs) == {OLD: "129"}


def test_a_check_tells_and_changes_nothing(node: Path) -> None:
    programs = Programs(node)
    register(programs, OLD, "129")
    outcome = do(programs, check=True)
    assert outcome.changed
    assert programs.query()["Value"] == OLD


def test_a_link_of_somebody_elses_is_left_and_named(node: Path) -> None:
    (node / LINK[1:]).symlink_to("cuda-12.9")
    (failure,) = do(Programs(node)).failures
    assert "not held by an alternative" in failure.why
    assert os.readlink(node / LINK[1:]) == "cuda-12.9"


def test_what_is_not_there_is_led_to_by_nothing(node: Path) -> None:
    (failure,) = do(Programs(node), {**ENTRY, "path": "/usr/local/cuda-11.8"}).failures
    assert "/usr/local/cuda-11.8 is not there" in failure.why


@pytest.mark.parametrize("broken", [{"name": "../x"}, {"link": "x"}, {"path": "/a/../b"}, {"more": 1}])
def test_an_entry_that_cannot_be_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read_slices({"part": [{**ENTRY, **broken}]}, None)


# ----- the linker's cache --------------------------------------------------------------------------------------------


def library(node: Path, place: str) -> None:
    """A shared library that ldconfig takes for one."""
    folder = node / place[1:]
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-x",
            "c",
            "/dev/null",
            "-Wl,-soname=libours.so.2",
            "-o",
            folder / "libours.so.2.0",
        ],
        check=True,
    )


def cached(node: Path) -> str:
    return subprocess.run(
        ["/sbin/ldconfig", "-r", str(node), "-p"], capture_output=True, text=True, check=True
    ).stdout


def entries(text: str) -> dict[str, list[dict[str, Any]]]:
    return {"part": [file_entry(CONF, text), {"kind": "linker_cache", "name": "part", "inputs": [CONF]}]}


@pytest.fixture
def linked(node: Path) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    library(node, "/opt/a/lib64")
    library(node, "/opt/b/lib64")
    plant(node, "/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    (node / "etc/ld.so.conf.d").mkdir()
    subprocess.run(["/sbin/ldconfig", "-r", str(node)], check=True)
    return node


def test_a_folder_is_found_after_it_and_a_second_run_makes_nothing(linked: Path) -> None:
    programs = Programs(linked)
    assert "libours" not in cached(linked)
    first = apply(entries("/opt/a/lib64\n"), root=str(linked), tools=programs)
    assert (first.failures, items(first, "part")["linker_cache:part"]["action"]) == ((), "rebuild")
    assert "=> /opt/a/lib64/libours.so.2" in cached(linked)
    assert not apply(entries("/opt/a/lib64\n"), root=str(linked), tools=programs).changed
    assert programs.calls == ["ldconfig"]
    apply(entries("/opt/b/lib64\n"), root=str(linked), tools=programs)
    assert "/opt/a" not in cached(linked)
    revert(["part"], root=str(linked), tools=programs)
    assert "libours" not in cached(linked)


def test_the_first_folder_of_the_file_wins_for_one_name(linked: Path) -> None:
    """Why the default toolkit stands first."""
    apply(entries("/opt/b/lib64\n/opt/a/lib64\n"), root=str(linked), tools=Programs(linked))
    found = [line for line in cached(linked).splitlines() if "libours.so.2 " in line]
    assert "/opt/b/lib64" in found[0]


def test_a_run_that_was_killed_before_it_owes_it_to_the_next_one(linked: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        apply(entries("/opt/a/lib64\n"), root=str(linked), tools=Programs(linked, kills="ldconfig"))
    assert "libours" not in cached(linked)
    apply(entries("/opt/a/lib64\n"), root=str(linked), tools=Programs(linked))
    assert "/opt/a/lib64/libours.so.2" in cached(linked)


def test_without_ldconfig_it_is_said(linked: Path) -> None:
    outcome = apply(
        {"part": [{"kind": "linker_cache", "inputs": [CONF]}]}, root=str(linked), tools=lambda _: Said(None)
    )
    assert item(outcome)["changed"] is False
    plant(linked, CONF, "/opt/a/lib64\n")
    os.utime(linked / CONF[1:])
    outcome = apply(
        {"part": [{"kind": "linker_cache", "inputs": [CONF]}]}, root=str(linked), tools=lambda _: Said(None)
    )
    assert "has no ldconfig" in outcome.failures[0].why
