"""What holds for every role and every playbook, read from their files."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.playing import PROGRAMS, PROJECT

ROLES = sorted(path for path in (PROJECT / "roles").iterdir() if path.is_dir())
HANDS = [role for role in ROLES if role.name not in ("nccl_build", "node", "preflight")]
PLAYBOOKS = sorted((PROJECT / "playbooks").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_defaults_of_a_role_are_those_of_its_spec(role: Path) -> None:
    options = read(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    specified = {
        name: option.get("default") for name, option in options.items() if not option.get("required")
    }
    assert (read(role / "defaults/main.yml") or {}) == specified


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_required_variable_is_named_in_the_defaults_for_who_reads_there(role: Path) -> None:
    options = read(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    text = (role / "defaults/main.yml").read_text("utf-8")
    assert [name for name, option in options.items() if option.get("required") and name not in text] == []


@pytest.mark.parametrize("role", HANDS, ids=lambda role: role.name)
def test_a_hand_makes_one_call_of_the_writer_and_runs_nothing_else(role: Path) -> None:
    tasks = read(role / "tasks/main.yml")
    actions = [key for task in tasks for key in task if key in ("node_state", "ansible.builtin.debug")]
    assert actions == ["node_state", "ansible.builtin.debug"]
    assert len(tasks) == 2


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda playbook: playbook.stem)
def test_a_playbook_is_good_syntax(playbook: Path) -> None:
    done = subprocess.run(
        [str(PROGRAMS / "ansible-playbook"), "-i", "inventories/example", "--syntax-check", str(playbook)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_site_only_imports_playbooks() -> None:
    assert {tuple(set(play) - {"name"}) for play in read(PROJECT / "playbooks/site.yml")} == {
        ("ansible.builtin.import_playbook",)
    }


def test_the_example_states_a_policy_that_can_be_read() -> None:
    from railwright.node.model import Policy

    variables = read(PROJECT / "inventories/example/group_vars/gpu_nodes.yml")
    assert Policy.read(variables["node_policy"]).expect.gpus == 8


def test_a_node_is_read_to_be_planned_with_all_that_is_asked_for() -> None:
    """A second reading that left out the inventory's rails would plan the node without their addresses."""
    files = [*(PROJECT / "playbooks").rglob("*.yml"), *(PROJECT / "roles").glob("*/tasks/*.yml")]
    readings = {
        path.relative_to(PROJECT).as_posix(): task["node_read"]
        for path in files
        for task in read(path)
        if "node_read" in task
    }
    # A role cannot be asked again until it answers otherwise, a task can.
    assert set(readings) == {"roles/node/tasks/read.yml", "playbooks/tasks/verify_driver.yml"}
    asked = {"folder", "policy", "left", "rails"}
    assert set(readings["roles/node/tasks/read.yml"]) == asked
    assert all(asked <= set(reading) for reading in readings.values())
