"""Two slices whose entries come, go and move between them, on a node that drifts: a check foretells each run, and a
revert gives the node back."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply, revert
from tests.unit.state_support import Systemd, file_entry, fingerprint, items, make_node, plant

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
