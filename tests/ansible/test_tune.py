"""A part of the plan, a slice that is left alone, and the whole road on a node that is entered without root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, give_to_a_plain_user, scratch
from tests.fake_nodes import Entry, changes, snapshot

POLICY = {
    "manage": {"irq_affinity": False},
    "expect": {"gpus": 8, "rails": 8},
    "pcie": {"acs": "bare-metal", "read_request": 4096},
}
MASKS = "proc/irq/"


@dataclass
class Story:
    """One node: a run of two tags, the whole road, a revert; its tree before and after each."""

    rack: Rack
    start: dict[str, Entry]
    part: Run
    after_part: dict[str, Entry]
    kept: set[str]
    whole: Run
    after_whole: dict[str, Entry]
    verify: Run
    revert: Run
    after_revert: dict[str, Entry]
    verify_again: Run
    report: Run


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        # A Python that another user than root can reach.
        rack = build_rack(place, {"node1": ("2s_8xh100_10xcx7_backwards", {})}, Path("/usr/bin/python3"))
        (node,) = rack.nodes
        if os.geteuid() == 0:
            give_to_a_plain_user(node)
        rack.write_inventory({"node1": POLICY})
        start = snapshot(node.tree)
        part = rack.play("tune.yml", "--tags", "nccl_conf,irq_affinity")
        after_part = snapshot(node.tree)
        kept = {path.name for path in (rack.output / "node1").iterdir()}
        whole = rack.play("site.yml")
        after_whole = snapshot(node.tree)
        verify = rack.play("verify.yml")
        revert = rack.play("revert.yml")
        after_revert = snapshot(node.tree)
        verify_again = rack.play("verify.yml")
        (rack.output / "index.html").unlink()
        report = rack.play("report.yml")
        yield Story(
            rack,
            start,
            part,
            after_part,
            kept,
            whole,
            after_whole,
            verify,
            revert,
            after_revert,
            verify_again,
            report,
        )


def written(before: dict[str, Entry], after: dict[str, Entry]) -> set[str]:
    """What has changed, without what the writer keeps for itself."""
    own = ("var/lib/railwright", "run/railwright")
    return {path for path in changes(before, after) if not path.startswith(own)}


def test_a_tag_writes_its_slice_and_no_other(story: Story) -> None:
    assert story.part.code == 0, story.part.output
    assert written(story.start, story.after_part) == {
        "etc/nccl.conf",
        "etc/cdi",
        "etc/cdi/railwright-nccl.json",
        "etc/enroot",
        "etc/enroot/mounts.d",
        "etc/enroot/mounts.d/60-railwright-nccl.fstab",
    }


def test_a_step_that_is_run_alone_keeps_what_it_read_and_decided(story: Story) -> None:
    assert story.kept == {"facts.json", "policy.json", "plan.json", "changes.json"}


def test_a_slice_that_the_policy_leaves_alone_is_left_alone_and_the_role_says_so(story: Story) -> None:
    said = "The policy leaves irq_affinity alone: nothing is written."
    assert said in [result["msg"] for result in story.part.results("ansible.builtin.debug")]
    assert [path for path in changes(story.start, story.after_whole) if path.startswith(MASKS)] == []


def test_the_whole_road_needs_no_root_of_this_machine(story: Story) -> None:
    assert story.whole.code == 0, story.whole.output
    assert {entry.uid for entry in story.after_whole.values()} == {os.geteuid() or 65534}
    assert "etc/sysctl.d/90-railwright.conf" in story.after_whole
    assert "proc/sys/kernel/numa_balancing" in written(story.start, story.after_whole)


def test_registers_that_differ_are_set_and_no_other(story: Story) -> None:
    """As the machine's page says: eight rails with small reads, two bridges that redirect."""
    spaces = {
        path.split("/")[-2] for path in written(story.start, story.after_whole) if path.endswith("/config")
    }
    rails = ("0c", "2a", "41", "58", "86", "a5", "bd", "d5")
    assert spaces == {f"0000:{bus}:00.0" for bus in (*rails, "40", "bc")}


def test_a_revert_needs_no_root_of_this_machine(story: Story) -> None:
    assert story.revert.code == 0, story.revert.output
    assert written(story.start, story.after_revert) == set()


def test_a_verification_alone_reads_plans_and_checks(story: Story) -> None:
    assert story.verify.code == 0, story.verify.output
    assert story.verify.changed == {"node1": 0}


def test_a_node_that_is_not_as_planned_fails_its_verification_with_what_to_do(story: Story) -> None:
    (message,) = story.verify_again.failures("node1")
    lines = message.splitlines()
    assert lines[0] == "This node is not as it should be."
    (line,) = (line for line in lines if line.startswith("nccl_conf.content: /etc/nccl.conf: is not there."))
    assert "playbooks/retune.yml" in line


def test_the_report_can_be_written_once_more(story: Story) -> None:
    assert story.report.code == 0, story.report.output
    assert (story.rack.output / "index.html").is_file()
