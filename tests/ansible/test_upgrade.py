"""Batches of an upgrade on fake nodes: a node that fails ends the run, and its neighbours are given back before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright.plan import nvidia_driver
from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.fake_nodes import FakeNode, changes, snapshot
from tests.unit.stack_support import H100, machine, policy

DEBIAN = {"os_release": {"ID": "debian", "VERSION_ID": "12"}}
DRIVER = "580.173.02"
POLICY = {"driver": {"version": DRIVER}, "limits": {}}
LEASE = "var/lib/lease"
LIMITS = "etc/security/limits.d"
# One alone, two together, then the rest, which a failure has to spare.
BATCHES: dict[str, Any] = {"upgrade_batches": [1, 2, 1], "upgrade_verify": "agreement"}
NAMES = ("alone", "busy", "half", "next")
PROCESS = "proc/4711"


@dataclass
class Story:
    """Of four nodes one has a GPU in use; one before it and one beside it wait to be given back; one comes after."""

    nodes: dict[str, FakeNode]
    output: Path
    checked: Run
    after_check: set[str]
    done: Run

    def leased(self, name: str) -> bool:
        return (self.nodes[name].tree / LEASE).exists()


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        wanted: tuple[str, dict[str, Any]] = ("2s_4xh100pcie_2xcx6", DEBIAN)
        rack = build_rack(place, dict.fromkeys(NAMES, wanted), plain_python())
        rack.write_inventory(dict.fromkeys(NAMES, POLICY))
        nodes = {node.name: node for node in rack.nodes}
        for node in rack.nodes:
            write_record(node, {"dpkg": "1.21.22"})
        begin_a_job(nodes["busy"])
        for name in ("alone", "half"):
            broken_off(rack, nodes[name])
            no_limits(nodes[name])
        before = snapshot(nodes["busy"].tree)
        checked = rack.play("upgrade_driver.yml", "--check", "--limit", "busy")
        written = changed(before, nodes["busy"])
        variables = {**BATCHES, "upgrade_drain": "lease", "upgrade_lease_file": f"/{LEASE}"}
        yield Story(
            nodes, rack.output, checked, written, rack.play("upgrade_driver.yml", variables=variables)
        )


def changed(before: Any, node: FakeNode) -> set[str]:
    return {path for path in changes(before, snapshot(node.tree)) if not path.startswith("run/railwright")}


def begin_a_job(node: FakeNode) -> None:
    """A process that has a GPU's file open."""
    (node.tree / PROCESS / "fd").mkdir(parents=True)
    (node.tree / PROCESS / "comm").write_text("python\n", "utf-8")
    (node.tree / PROCESS / "fd/3").symlink_to("/dev/nvidia0")


def broken_off(rack: Rack, node: FakeNode) -> None:
    """As after a run of ours that ended when all was installed, and nobody had been told yet."""
    chosen, _ = nvidia_driver.choose(machine(H100), policy(DRIVER))
    assert chosen is not None
    stand = {name: version for name, version in chosen.versions.items() if version is not None}
    write_record(node, {"dpkg": "1.21.22", **stand})
    module = node.tree / "sys/module/nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text(f"{DRIVER}\n", "utf-8")
    (rack.output / node.name).mkdir(parents=True, exist_ok=True)
    (rack.output / node.name / "driver-before.json").write_text("{}\n", "utf-8")


def no_limits(node: FakeNode) -> None:
    """What is planned for the limits cannot be written: their folder is none."""
    place = node.tree / LIMITS
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("", "utf-8")


def write_record(node: FakeNode, versions: dict[str, str]) -> None:
    """dpkg's record: these packages, held."""
    status = node.tree / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True, exist_ok=True)
    stanzas = (
        f"Package: {name}\nStatus: hold ok installed\nArchitecture: amd64\nVersion: {version}\n"
        for name, version in versions.items()
    )
    status.write_text("\n".join(stanzas), "utf-8")


def test_a_check_says_who_would_stop_it_and_changes_nothing(story: Story) -> None:
    assert story.checked.failures("busy")[-1] == (
        "This upgrade would fail now: somebody uses the GPUs: in use by python (process 4711). Nothing was changed."
    )
    assert story.after_check == set()


def test_a_neighbour_of_a_node_that_failed_comes_to_its_end(story: Story) -> None:
    assert story.done.failed == {"busy"}, story.done.failures("half")
    assert set(story.done.hosts) == {"alone", "busy", "half"}
    assert [story.leased(name) for name in ("alone", "busy", "half")] == [False, True, False]


def test_a_batch_with_a_failure_ends_the_run(story: Story) -> None:
    assert "next" not in story.done.hosts
    assert not story.leased("next")


def test_what_is_no_part_of_the_driver_is_not_written_and_cannot_send_a_good_one_back(story: Story) -> None:
    plan = json.loads((story.output / "alone/plan.json").read_text("utf-8"))
    assert plan["slices"]["limits"]["entries"]
    ran = {
        (one["host"], one["task"].partition(" : ")[0])
        for one in story.done.events
        if one["kind"] != "skipped"
    }
    for name in ("alone", "half"):
        assert (name, "nvidia_driver") in ran
        assert (name, "limits") not in ran
    assert not story.done.failures("alone")
