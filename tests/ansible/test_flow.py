"""The whole road over two fake nodes: tune, tune again, drift, revert. One rack, played once; each test looks at it.

What was written is read off the nodes' trees. What should have been written is worked out here from plan.json and the
recorded machine, not asked of the writer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.fake_nodes import Entry, FakeNode, changes, snapshot

MACHINES: dict[str, tuple[Path | str, dict[str, Any]]] = {
    "node1": ("2s_8xh100_10xcx7", {}),
    "node2": ("2s_8xh100_10xcx7_backwards", {}),
}
NODES = tuple(MACHINES)
Look = dict[str, dict[str, Entry]]


@dataclass
class Story:
    """What was seen: runs and, by node, trees."""

    rack: Rack
    runs: dict[str, Run] = field(default_factory=dict)
    trees: dict[str, Look] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)

    def look(self, name: str) -> None:
        self.trees[name] = {node.name: snapshot(node.tree) for node in self.rack.nodes}
        for tree in self.trees[name].values():
            # The writer's lock comes and goes in /run, and the folder's time tells it.
            del tree["run"]

    def play(self, name: str, playbook: str, *arguments: str) -> None:
        self.runs[name] = self.rack.play(playbook, *arguments)
        self.look(name)

    def written(self, before: str, after: str, node: str) -> set[str]:
        return changes(self.trees[before][node], self.trees[after][node])


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        story = Story(build_rack(place, MACHINES, plain_python("3.9", "3.10", "3.11", "3.12")))
        story.look("start")
        story.play("check", "site.yml", "--check", "--diff")
        story.play("first", "site.yml", "--diff")
        for name in NODES:
            story.plans[name] = json.loads((story.rack.output / name / "plan.json").read_text("utf-8"))
        story.play("second", "site.yml")
        story.play("retune", "retune.yml")
        drift(story.rack.nodes[0])
        story.look("drift")
        story.play("drift check", "retune.yml", "--check", "--diff")
        story.play("repair", "retune.yml")
        story.play("revert", "revert.yml")
        yield story


DRIFT = {
    "etc/nccl.conf",
    "etc/profile.d/railwright-gpu-order.sh",
    "proc/sys/net/ipv4/neigh/default/gc_thresh1",
}


def drift(node: FakeNode) -> None:
    """One file changed, one gone, one kernel parameter turned."""
    with (node.tree / "etc/nccl.conf").open("a", encoding="utf-8") as file:
        file.write("NCCL_IB_HCA==mlx5_9\n")
    (node.tree / "etc/profile.d/railwright-gpu-order.sh").unlink()
    (node.tree / "proc/sys/net/ipv4/neigh/default/gc_thresh1").write_text("128\n", encoding="utf-8")


def entries(story: Story, node: str, kind: str) -> list[dict[str, Any]]:
    return [e for part in story.plans[node]["slices"].values() for e in part["entries"] if e["kind"] == kind]


def with_new_folders(paths: set[str], before: dict[str, Entry]) -> set[str]:
    """The paths, and the folders above them that were not there."""
    above = {str(folder) for path in paths for folder in Path(path).parents}
    return paths | {folder for folder in above if folder != "." and folder not in before}


def owed(story: Story, node: str) -> set[str]:
    """Every path that the plan writes, but for interrupts: files, parameters that differ, the link that enables."""
    before = story.trees["start"][node]
    paths = {entry["path"].lstrip("/") for entry in entries(story, node, "file")}
    for entry in entries(story, node, "systemd_unit"):
        paths.add(f"etc/systemd/system/multi-user.target.wants/{entry['name']}")
    for entry in entries(story, node, "sysctl"):
        path = f"proc/sys/{entry['name'].replace('.', '/')}"
        if before[path].content != sha256(f"{entry['value']}\n".encode()).hexdigest():
            paths.add(path)
    return with_new_folders(paths, before)


def interrupts_of_the_plan(story: Story, node: str) -> set[str]:
    """Files of the interrupts that belong to a device of the plan."""
    tree = next(one.tree for one in story.rack.nodes if one.name == node)
    numbers: list[str] = []
    for entry in entries(story, node, "irq_affinity"):
        numbers += os.listdir(tree / "sys/bus/pci/devices" / entry["device"] / "msi_irqs")
    return {f"proc/irq/{number}/smp_affinity_list" for number in numbers}


def foretold(run: Run, node: str, before: dict[str, Entry]) -> set[str]:
    """The paths that a dry run says would change, as its items and its diff name them."""
    paths: set[str] = set()
    for result in (*run.results("node_state", node), *run.results("node_write", node)):
        items = [item for part in result["slices"].values() for item in part["items"] if item["changed"]]
        for item in items:
            kind, _, name = item["id"].partition(":")
            if kind == "file":
                paths.add(name.lstrip("/"))
            elif kind == "sysctl":
                paths.add(f"proc/sys/{name.replace('.', '/')}")
            elif kind == "systemd_unit" and "enable" in item["action"].split("+"):
                paths.add(f"etc/systemd/system/multi-user.target.wants/{name}")
        for entry in result["diff"]:
            old, new = (
                dict(re.findall(r"^IRQ (\d+) = (.*)$", entry[side], re.M)) for side in ("before", "after")
            )
            paths |= {f"proc/irq/{irq}/smp_affinity_list" for irq in new if old.get(irq) != new[irq]}
    return with_new_folders(paths, before)


def own(paths: set[str]) -> set[str]:
    """What the writer keeps for itself: the record that a revert needs, and until a boot its own code."""
    record = {
        path for path in paths if path == "var/lib/railwright" or path.startswith("var/lib/railwright/")
    }
    return record | bytecode(paths)


def bytecode(paths: Iterable[str]) -> set[str]:
    return {path for path in paths if path.startswith("run/railwright.code.")}


@pytest.mark.parametrize("node", NODES)
def test_a_dry_run_touches_nothing_on_a_virgin_node(story: Story, node: str) -> None:
    assert story.runs["check"].code == 0, story.runs["check"].output
    assert story.trees["check"][node] == story.trees["start"][node]


@pytest.mark.parametrize("node", NODES)
def test_a_run_writes_what_the_plan_says_and_nothing_else(story: Story, node: str) -> None:
    assert story.runs["first"].code == 0, story.runs["first"].output
    written = story.written("start", "first", node)
    moved = {path for path in written if path.startswith("proc/irq/")}
    assert written - own(written) - moved == owed(story, node)
    assert moved
    assert moved <= interrupts_of_the_plan(story, node)


@pytest.mark.parametrize("node", NODES)
def test_a_dry_run_foretells_what_the_run_then_writes(story: Story, node: str) -> None:
    written = story.written("start", "first", node)
    assert foretold(story.runs["check"], node, story.trees["start"][node]) == written - own(written)


@pytest.mark.parametrize("node", NODES)
def test_a_file_of_the_plan_lies_on_the_node_byte_for_byte(story: Story, node: str) -> None:
    tree = story.trees["first"][node]
    for entry in entries(story, node, "file"):
        digest = entry.get("sha256") or sha256(entry["content"].encode()).hexdigest()
        there = tree[entry["path"].lstrip("/")]
        assert (there.content, there.mode, there.uid) == (digest, entry["mode"], os.geteuid())


@pytest.mark.parametrize("again", ["second", "retune"])
@pytest.mark.parametrize("node", NODES)
def test_a_second_run_changes_no_content_no_time_and_no_inode(story: Story, node: str, again: str) -> None:
    assert story.runs[again].code == 0, story.runs[again].output
    assert story.runs[again].changed == dict.fromkeys(NODES, 0)
    first, now = story.trees["first"][node], story.trees[again][node]
    # A retune reads in the call that writes, and so has some more code to keep.
    assert {path: now[path] for path in now.keys() - bytecode(now)} == {
        path: first[path] for path in first.keys() - bytecode(first)
    }


def test_a_second_run_calls_systemctl_for_nothing_that_changes(story: Story) -> None:
    for node in story.rack.nodes:
        started = [argv[-1] for argv in node.systemctl_calls() if argv[0] == "start"]
        assert started == ["railwright-again.path", "railwright.service"]


def test_a_run_without_a_change_takes_three_tasks_a_node_and_two_for_all(story: Story) -> None:
    taken = {node: count["ok"] + count["skipped"] for node, count in story.runs["retune"].hosts.items()}
    # Begin, read, write and look. The nodes' common plan is made and handed on once, and counted with the first node.
    assert taken == {"node1": 5, "node2": 3}


def test_drift_is_foretold_without_a_touch_and_then_mended_and_nothing_else(story: Story) -> None:
    assert foretold(story.runs["drift check"], "node1", story.trees["drift"]["node1"]) == DRIFT
    assert foretold(story.runs["drift check"], "node2", story.trees["drift"]["node2"]) == set()
    assert story.trees["drift check"] == story.trees["drift"]
    assert story.runs["repair"].changed == {"node1": 1, "node2": 0}
    assert story.written("drift", "repair", "node1") - own(story.written("drift", "repair", "node1")) == DRIFT
    assert story.written("first", "repair", "node1") <= own(story.written("first", "repair", "node1"))


@pytest.mark.parametrize("node", NODES)
def test_a_revert_puts_the_starting_tree_back(story: Story, node: str) -> None:
    assert story.runs["revert"].code == 0, story.runs["revert"].output
    changed = story.written("start", "revert", node)
    assert changed == own(changed) - bytecode(changed)
    start, now = story.trees["start"][node], story.trees["revert"][node]
    assert [
        path
        for path, entry in start.items()
        if entry.kind == "file"
        and not path.startswith(("proc/", "sys/"))
        and now[path].mtime_ns != entry.mtime_ns
    ] == []


def test_the_rails_of_two_differently_numbered_nodes_are_told_apart_and_alike(story: Story) -> None:
    rails = {
        name: [(nic["rail"], nic["pci"]) for nic in plan["nics"] if nic["role"] == "rail"]
        for name, plan in story.plans.items()
    }
    names = {
        name: [nic["name"] for nic in plan["nics"] if nic["role"] == "rail"]
        for name, plan in story.plans.items()
    }
    assert sorted(rails["node1"]) == sorted(rails["node2"])
    assert names["node1"] != names["node2"]


def test_the_nodes_ran_the_oldest_python_they_may_and_had_no_railwright(story: Story) -> None:
    for node in story.rack.nodes:
        code = "import sys; print(sys.version_info[:2]); import railwright"
        done = subprocess.run([str(node.python), "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout == "(3, 9)\n"
        assert "No module named 'railwright'" in done.stderr


def test_the_report_of_a_run_says_that_all_is_good(story: Story) -> None:
    assert "ok: true. All 2 nodes are good" in story.runs["second"].output
    assert (story.rack.output / "index.html").is_file()
