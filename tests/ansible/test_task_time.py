"""How long tasks may take, as Ansible itself resolves it for each: what installs, reboots or bakes has more time than
the rest of a run, and never more than the node is held for."""

from __future__ import annotations

import json
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.node.state import command
from tests.ansible.playing import PROJECT

# Prints each task that Ansible finds in a playbook: its action, and the timeout that it inherits or has.
_TELL = """
import json, sys
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.plugins.loader import init_plugin_loader
from ansible.vars.manager import VariableManager
from ansible.inventory.manager import InventoryManager
init_plugin_loader([])
loader = DataLoader()
loader.set_basedir(sys.argv[2])
variables = VariableManager(loader, InventoryManager(loader, sources=["localhost,"]))
found = []
def walk(block):
    for each in [*block.block, *block.rescue, *block.always]:
        if hasattr(each, "block"):
            walk(each)
        else:
            found.append([each.name, each.action, each.timeout])
for play in Playbook.load(sys.argv[1], variable_manager=variables, loader=loader).get_plays():
    for block in play.compile():
        walk(block)
print(json.dumps(found))
"""


def tasks(playbook: Path) -> dict[str, tuple[str, Any]]:
    """Action and timeout of each task by its name, the roles' own among them; unresolved where it is a template."""
    done = subprocess.run(
        [sys.executable, "-c", _TELL, str(playbook), str(PROJECT / "playbooks")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return {name: (action, timeout) for name, action, timeout in json.loads(done.stdout)}


def of_file(tmp_path: Path, name: str) -> dict[str, tuple[str, Any]]:
    """The tasks of a file that other playbooks include."""
    play = [{"hosts": "localhost", "tasks": [{"import_tasks": str(PROJECT / "playbooks/tasks" / name)}]}]
    page = tmp_path / "play.yml"
    page.write_text(yaml.safe_dump(play), "utf-8")
    return tasks(page)


@pytest.fixture
def usual() -> int:
    config = ConfigParser()
    config.read(PROJECT / "ansible.cfg")
    return config.getint("defaults", "task_timeout")


def test_a_task_that_installs_has_time_for_its_longest_program_and_is_over_before_its_hold(
    tmp_path: Path, usual: int
) -> None:
    text = (PROJECT / "playbooks/tasks/install_slices.yml").read_text("utf-8")
    held = yaml.safe_load(text)[0]["block"][0]["node_state"]["seconds"]
    longest = max(command._LONGER_SECONDS.values())
    found = of_file(tmp_path, "install_slices.yml")
    writing = {name: timeout for name, (action, timeout) in found.items() if action == "node_state"}
    assert len(writing) > 10
    for name, timeout in writing.items():
        assert longest > usual
        assert longest + 600 <= timeout <= held - 300, name


def test_what_goes_back_has_the_same_time(tmp_path: Path) -> None:
    installing = of_file(tmp_path, "install_slices.yml")["Install CUDA"][1]
    assert (
        of_file(tmp_path, "roll_back.yml")["roll_back | Write the recorded set in one transaction"][1]
        == installing
    )
    assert tasks(PROJECT / "playbooks/revert.yml")["Put back what was there before"][1] == installing


@pytest.mark.parametrize("name", ["reboot.yml", "roll_back.yml"])
def test_a_reboot_is_waited_for_longer_than_it_may_take(tmp_path: Path, name: str) -> None:
    ((_, timeout),) = [task for task in of_file(tmp_path, name).values() if task[0] == "node_reboot"]
    assert timeout == "{{ install_reboot_timeout | default(1800) | int + 600 }}"


def test_a_self_test_and_a_bake_are_not_cut_off(tmp_path: Path, usual: int) -> None:
    assert (
        of_file(tmp_path, "self_test.yml")["self_test | Run it in every environment"][1] >= 900 + 10 > usual
    )
    assert (
        tasks(PROJECT / "playbooks/bake_image.yml")["Make the image, or what of it is not there yet"][1] == 0
    )


def test_other_tasks_are_over_soon(usual: int) -> None:
    found = tasks(PROJECT / "playbooks/tune.yml")
    assert {timeout for _, timeout in found.values()} == {usual}
