"""A run is good when its statistics were seen and every host came through; an exit status alone proves nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from railwright.fleet.play import Outcome, Step, find_project, run
from railwright.node.model import InputError

PLAY = """---
- name: First
  hosts: all
  gather_facts: false
  tasks:
    - name: Say something
      ansible.builtin.command: {argv: ["true"]}
      changed_when: inventory_hostname == "b"
    - name: Break one
      ansible.builtin.fail: {msg: "b is broken"}
      when: broken | bool and inventory_hostname == "b"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/site.yml").write_text(PLAY, encoding="utf-8")
    (tmp_path / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    (tmp_path / "hosts.yml").write_text(
        f"""all:
  hosts: {{a: {{}}, b: {{}}}}
  vars: {{ansible_connection: local, ansible_python_interpreter: "{sys.executable}"}}
""",
        encoding="utf-8",
    )
    return tmp_path


def _run(project: Path, playbook: str = "site.yml", *, broken: bool = False) -> tuple[Outcome, list[Step]]:
    steps: list[Step] = []
    outcome = run(project, playbook, project / "hosts.yml", variables={"broken": broken}, tell=steps.append)
    return outcome, steps


def test_a_run_that_came_through_is_good_and_names_what_each_host_did(project: Path) -> None:
    outcome, steps = _run(project)
    assert outcome.good
    assert outcome.hosts == {"a": "ok", "b": "changed"}
    assert [step.name for step in steps if step.kind == "play"] == ["First"]
    assert {(step.host, step.kind) for step in steps if step.name == "Say something" and step.host} == {
        ("a", "ok"),
        ("b", "changed"),
    }


def test_a_failed_host_makes_the_run_bad_and_its_words_are_kept(project: Path) -> None:
    outcome, _ = _run(project, broken=True)
    assert not outcome.good
    assert outcome.finished
    assert outcome.hosts == {"a": "ok", "b": "failed"}
    assert [(step.host, step.message) for step in outcome.failures] == [("b", "b is broken")]


def test_a_playbook_that_never_ran_is_not_good_and_says_why(project: Path) -> None:
    (project / "playbooks/broken.yml").write_text("- hosts: all\n  tasks: 7\n", encoding="utf-8")
    outcome, _ = _run(project, "broken.yml")
    assert not outcome.good
    assert not outcome.finished
    assert "list of tasks" in outcome.output or "tasks" in outcome.output


def test_statistics_without_a_host_are_no_success(project: Path) -> None:
    assert not Outcome(code=0, finished=True).good


def test_a_cut_stream_is_no_success() -> None:
    assert not Outcome(code=0, finished=False, hosts={"a": "ok"}).good


def test_the_checkout_is_found_from_a_folder_below_it(project: Path) -> None:
    below = project / "inventories/site"
    below.mkdir(parents=True)
    assert find_project(None, below) == project.resolve()


def test_outside_a_checkout_the_way_out_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no playbooks/site\.yml.*--project CHECKOUT"):
        find_project(None, tmp_path)
    with pytest.raises(InputError, match=r"has no playbooks/site\.yml"):
        find_project(tmp_path, Path("/"))
