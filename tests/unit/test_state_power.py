"""A power cut after any system call of a run: no managed file is empty or torn, the record can put everything back,
and the next run ends what was begun. The model of the disk is `power_model`."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply, revert
from tests.unit.crash_support import GOOD, MUTATING, Traced, tracing
from tests.unit.kind_nodes import KINDS
from tests.unit.power_model import Disk, files, lay_out, record
from tests.unit.state_support import file_entry, make_node, plant

RECORD = "var/lib/railwright/state.json"
# Given to others, where this process may do that.
OWNED = file_entry("/etc/owned", "new\n", owner="1234" if os.geteuid() == 0 else str(os.geteuid()))
ENTRIES = [*KINDS["file"].entries, *KINDS["json_keys"].entries, OWNED]
OLD = [*ENTRIES, file_entry("/etc/gone", "gone in the next plan\n"), file_entry("/etc/deeper/gone", "gone\n")]
File = tuple[int, int, int, bytes]


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    with tracing(tmp_path) as runs:
        yield runs


@pytest.fixture
def node(tmp_path: Path) -> Path:
    node = make_node(tmp_path / "node")
    for name in ("file", "json_keys"):
        KINDS[name].plant(node)
    plant(node, "/etc/owned", "old\n")
    return node


def of_disk(node: Path) -> dict[str, File]:
    """What of the tree lies on a disk: /run does not."""
    return {
        path: file
        for path, file in files(Disk(node).start).items()
        if path.partition("/")[0] in ("etc", "var")
    }


def recorded(traced: Traced, verb: str, node: Path, slices: Any) -> Disk:
    before = node.with_name("before")
    shutil.copytree(node, before, symlinks=True)
    for path in node.rglob("*"):
        os.chown(
            before / path.relative_to(node), path.lstat().st_uid, path.lstat().st_gid, follow_symlinks=False
        )
    assert (
        traced.run(verb, node, slices, "-x", "-s", "9999999", "-e", f"trace=openat,close,{MUTATING}") == GOOD
    )
    disk = record(traced.log.read_text().replace(str(node), str(before)), before)
    # The model has seen the run as it was: what it holds at its end is the tree.
    assert {
        path: file for path, file in files(disk.now).items() if path.startswith(("etc", "var"))
    } == of_disk(node)
    shutil.rmtree(before)
    return disk


def check(
    found: dict[str, File], start: dict[str, File], before: dict[str, File], done: dict[str, File]
) -> None:
    known: dict[str, Any] = {}
    if RECORD in found:
        told = json.loads(found[RECORD][3])  # whole, or this fails
        assert found[RECORD][0] == stat.S_IFREG | 0o600
        known = {
            kept["entry"]["path"][1:]: (told, item)
            for part in told["slices"].values()
            for item, kept in part.items()
        }
    for path in {*before, *done} - {RECORD}:
        if path.startswith("var/lib/railwright"):
            continue
        file = found.get(path)
        if file is None:
            assert path not in before or path not in done, f"{path} is gone"
        else:
            of = [tree[path] for tree in (before, done) if path in tree]
            assert file[3] in [state[3] for state in of], f"{path} is torn: {file[3]!r}"
            assert file[0] in [state[0] for state in of], f"{path} has mode {file[0]:o}"
            assert file in of, (
                f"{path} is of {file[1]}:{file[2]}, which is not the owner with this mode and content"
            )
        if file != start.get(path) and (file is None or stat.S_ISREG(file[0])):
            assert path in known, f"{path} is ours and in no record"
            assert prior(*known[path]) == (start[path][3] if path in start else None), path


def prior(told: Any, item_id: str) -> bytes | None:
    """The bytes that the record would put back."""
    if item_id in told["origins"]:
        origin = told["origins"][item_id]
        return base64.b64decode(origin["bytes"]) if "bytes" in origin else None
    (cell,) = (part[item_id]["cells"][""] for part in told["slices"].values() if item_id in part)
    return None if cell["prior"] is None else base64.b64decode(cell["prior"]["bytes"])


@pytest.mark.parametrize("what", ["first", "next", "revert"])
def test_a_power_cut_at_any_moment_leaves_every_file_whole_and_can_be_put_back(
    node: Path, traced: Traced, what: str
) -> None:
    start = of_disk(node)
    if what != "first":
        assert apply({"part": OLD}, root=str(node)).failures == ()
    before = of_disk(node)
    verb = "revert" if what == "revert" else "apply"
    slices = {"part": ENTRIES}
    disk = recorded(traced, verb, node, slices)
    done = of_disk(node)
    assert (done == start) == (what == "revert")

    states: dict[str, dict[str, File]] = {}
    tried = 0
    for place, inodes in disk.after_power_loss():
        found = {path: file for path, file in files(inodes).items() if path.startswith(("etc", "var"))}
        tried += 1
        try:
            check(found, start, before, done)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{place}: {error}") from None
        states.setdefault(repr(sorted(found.items())), found)
    assert tried > 100

    # And the next run ends it, from whatever was on the disk.
    for number, found in enumerate(states.values()):
        root = node.with_name(str(number))
        lay_out(found, root)
        for name in ("run", "proc", "sys"):
            (root / name).mkdir()
        outcome = revert(root=str(root)) if verb == "revert" else apply(slices, root=str(root))
        assert outcome.failures == ()
        assert {path: file for path, file in of_disk(root).items() if path != RECORD} == {
            path: file for path, file in done.items() if path != RECORD
        }
        assert revert(root=str(root)).failures == ()
        assert of_disk(root) == start
        shutil.rmtree(root)
    print(f"{what}: {len(disk.steps)} steps, {tried} power cuts, {len(states)} disks, all run to their end")


def test_the_model_loses_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    """The classic: write, rename, and no fsync of the file: an empty one; without that of the folder: the old one."""
    root = tmp_path / "node"
    plant(root, "/etc/a", "old")
    for synced, expected in (
        ([], {b"old", b"", b"ne", b"new!"}),
        (["file"], {b"old", b"new!"}),
        (["file", "folder"], {b"new!"}),
    ):
        disk = Disk(root)
        folder = disk.start[0].names["etc"]
        temporary = disk.make(stat.S_IFREG | 0o644)
        disk.do(folder, "link", (".a", temporary))
        disk.do(temporary, "data", b"new!")
        if "file" in synced:
            disk.sync(temporary)
        disk.do(folder, "rename", (".a", "a", temporary))
        if "folder" in synced:
            disk.sync(folder)
        count = len(disk.steps)
        end = f"after step {count} of {count} and {len(synced)} syncs"
        ends = [inodes for place, inodes in disk.after_power_loss() if place.startswith(end)]
        assert {files(inodes)["etc/a"][3] for inodes in ends} == expected
