"""The installation on a fake node: nothing without a policy, and a kernel whose reboot is said and not made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.fake_nodes import Entry, changes, snapshot

EXPECT = {"expect": {"gpus": 8, "rails": 8}}
POLICY = {**EXPECT, "kernel": {"huge_pages": {"1G": 2}, "power": False}}
MENU = "boot/grub/grub.cfg"
# What grub-mkconfig makes of the files, as far as a test needs it.
UPDATE_GRUB = """#!/bin/sh
for file in /etc/default/grub /etc/default/grub.d/*.cfg; do [ -e "$file" ] && . "$file"; done
printf "menuentry 'x' {\\n\\tlinux /boot/vmlinuz-6.1 ro %s\\n}\\n" "$GRUB_CMDLINE_LINUX_DEFAULT" > /boot/grub/grub.cfg
"""
WORDS = "iommu=pt numa_balancing=disable skew_tick=1 init_on_alloc=0 hugepagesz=1G hugepages=2"


@dataclass
class Story:
    """One node: without a policy for it, in check mode, for real, again; what was written by each."""

    rack: Rack
    idle: Run
    after_idle: set[str]
    checked: Run
    after_check: set[str]
    first: Run
    after_first: set[str]
    menu: str
    kept: Any
    second: Run


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        rack = build_rack(place, {"node1": ("2s_8xh100_10xcx7", {})}, plain_python())
        (node,) = rack.nodes
        stand_in(node.tree.parent / "bin/update-grub", node.tree / MENU)
        start = snapshot(node.tree)
        rack.write_inventory({"node1": EXPECT})
        idle = rack.play("install.yml")
        after_idle = written(start, snapshot(node.tree))
        rack.write_inventory({"node1": POLICY})
        checked = rack.play("install.yml", "--check")
        after_check = written(start, snapshot(node.tree))
        first = rack.play("install.yml", "-e", "install_reboot=true")
        after_first = written(start, snapshot(node.tree))
        menu = (node.tree / MENU).read_text("utf-8")
        kept = json.loads((rack.output / "node1/changes.json").read_text("utf-8"))
        second = rack.play("install.yml")
        yield Story(rack, idle, after_idle, checked, after_check, first, after_first, menu, kept, second)


def stand_in(program: Path, menu: Path) -> None:
    program.write_text(UPDATE_GRUB, "utf-8")
    program.chmod(0o755)
    menu.parent.mkdir(parents=True)
    menu.write_text("menuentry 'x' {\n\tlinux /boot/vmlinuz-6.1 ro quiet\n}\n", "utf-8")


def written(before: dict[str, Entry], after: dict[str, Entry]) -> set[str]:
    """What has changed, without what the writer keeps for itself."""
    own = ("var/lib/railwright", "run/railwright")
    return {path for path in changes(before, after) if not path.startswith(own)}


def said(run: Run) -> str:
    return "\n".join(str(result.get("msg", "")) for result in run.results("ansible.builtin.debug"))


def test_a_policy_that_asks_for_nothing_installs_nothing_and_says_so(story: Story) -> None:
    assert story.idle.code == 0, story.idle.output
    assert "nothing is installed" in said(story.idle)
    assert (story.idle.changed, story.after_idle) == ({"node1": 0}, set())


def test_a_check_says_what_would_change_and_changes_nothing(story: Story) -> None:
    assert story.checked.code == 0, story.checked.output
    assert (story.checked.changed, story.after_check) == ({"node1": 1}, set())


def test_the_arguments_stand_in_grubs_menu_by_a_file_of_our_own(story: Story) -> None:
    assert story.first.code == 0, story.first.output
    assert {path for path in story.after_first if path.startswith("etc")} <= {
        "etc/default",
        "etc/default/grub.d",
        "etc/default/grub.d/zz-railwright-kernel.cfg",
    }
    assert WORDS in story.menu


def test_a_reboot_is_said_and_the_machine_of_the_playbook_is_never_rebooted(story: Story) -> None:
    assert "takes effect at the next boot: boot_arguments:kernel" in said(story.first)
    assert "the machine that this playbook runs on" in said(story.first)
    assert story.first.results("node_reboot") == []
    assert story.kept["reboot_needed"] == ["boot_arguments:kernel"]


def test_a_second_run_changes_nothing_and_still_says_what_waits_for_a_boot(story: Story) -> None:
    assert story.second.code == 0, story.second.output
    assert story.second.changed == {"node1": 0}
    assert "takes effect at the next boot: boot_arguments:kernel" in said(story.second)
