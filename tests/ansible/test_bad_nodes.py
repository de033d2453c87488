"""A node that cannot be planned, a node that lies, and a good one beside them: each is alone with its fate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.node.discover import discover
from railwright.node.model import to_json
from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.fake_nodes import Entry, FakeNode, inventory, snapshot

MACHINES: dict[str, tuple[Path | str, dict[str, Any]]] = {
    "good": ("2s_8xh100_10xcx7", {}),
    "short": ("2s_7xh100_10xcx7", {}),
}
POLICIES = {"short": {"expect": {"gpus": 8}}}
# What a node might send in the hope that somebody evaluates it, or makes a path of it.
TEMPLATE = "{{ lookup('ansible.builtin.pipe', 'touch TRAP') }}"
PATH = "../../../../../../../../TRAP"


@dataclass
class Story:
    """One run over all, one over the node that cannot be planned alone; trees by node before and after."""

    rack: Rack
    trap: Path
    before: dict[str, Entry]
    run: Run
    after: dict[str, Entry]
    report: dict[str, Any]
    alone: Run
    report_alone: dict[str, Any]
    look: Run
    findings_look: dict[str, Any]
    stuck: Run
    changes_stuck: dict[str, Any]


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        rack = build_rack(place, MACHINES, plain_python("3.9", "3.10", "3.11", "3.12"))
        trap = place.nodes / "trap"
        liar = liar_node(place.nodes / "liar", rack.nodes[0].tree, trap)
        rack = Rack(place.nodes, (*rack.nodes, liar))
        rack.write_inventory(POLICIES)
        short = rack.nodes[1].tree
        before = snapshot(short)
        run = rack.play("site.yml")
        after, report = snapshot(short), read_report(rack)
        alone = rack.play("site.yml", "--limit", "short")
        report_alone = read_report(rack)
        look = rack.play("look.yml", "--limit", "short")
        findings_look = json.loads((rack.output / "short/findings.json").read_text("utf-8"))
        in_the_way = rack.nodes[0].tree / "etc/nccl.conf"
        in_the_way.unlink()
        in_the_way.mkdir()
        (rack.nodes[0].tree / "etc/profile.d/railwright-gpu-order.sh").unlink()
        stuck = rack.play("retune.yml", "--limit", "good")
        changes_stuck = json.loads((rack.output / "good/changes.json").read_text("utf-8"))
        yield Story(
            rack,
            trap,
            before,
            run,
            after,
            report,
            alone,
            report_alone,
            look,
            findings_look,
            stuck,
            changes_stuck,
        )


def read_report(rack: Rack) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((rack.output / "report.json").read_text("utf-8"))
    return report


def liar_node(folder: Path, tree: Path, trap: Path) -> FakeNode:
    """A node whose Python answers every module with the same forgery."""
    template, path = TEMPLATE.replace("TRAP", str(trap)), PATH.replace("/TRAP", str(trap))
    facts = to_json(discover(tree))
    # A name of its own choice that is a good one: a path in its place would be refused before anything uses it.
    facts["host"] |= {"name": "trap", "product": template, "kernel": path}
    facts["notes"] = [template, path, "\x1b[2Jcleared", "\u202egnol", "a\nTASK [fake] ok: [good]"]
    answer = {
        "changed": False,
        "ansible_facts": {
            "node": facts,
            "node_output": str(trap),
            "node_plan": template,
            "node_policy": {"workload": template},
            "ansible_connection": template,
            "ansible_python_interpreter": str(trap),
        },
        "slices": {path: {"changed": False, "items": []}},
        "diff": [{"before_header": template, "after_header": path, "before": "", "after": template}],
        "failures": [],
        "reboot_needed": [],
        "msg": template,
    }
    (folder / "scratch").mkdir(parents=True)
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
    node = FakeNode(folder.name, folder)
    node.python.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {folder}/answer.json\n", encoding="utf-8")
    node.python.chmod(0o755)
    return node


def test_a_refused_node_stops_alone_and_says_each_reason_with_its_remedy(story: Story) -> None:
    plan = json.loads((story.rack.output / "short/plan.json").read_text("utf-8"))
    assert plan["status"] == "refused"
    assert [refusal["code"] for refusal in plan["refusals"]] == ["expect.gpus"]
    (refusal,) = plan["refusals"]
    assert story.run.failures("short") == [
        "This node cannot be planned, and nothing is written on it.\n"
        f"expect.gpus: {refusal['where']}: {refusal['why']}. {refusal['remedy']}"
    ]
    assert "slot 26" in refusal["where"]
    assert story.after == story.before


def test_a_bad_node_does_not_stop_a_good_one(story: Story) -> None:
    assert story.run.failures("good") == []
    assert story.run.hosts["good"]["changed"] > 0
    assert (story.rack.nodes[0].tree / "etc/sysctl.d/90-railwright.conf").is_file()
    assert story.report["nodes"]["good"]["ok"] is True


def test_the_report_tells_which_nodes_are_bad(story: Story) -> None:
    assert story.report["ok"] is False
    assert story.report["nodes"]["short"]["status"] == "refused"


def test_the_report_comes_when_every_node_of_the_run_has_failed(story: Story) -> None:
    assert story.alone.code != 0
    assert story.alone.hosts.keys() == {"short"}
    assert story.report_alone["nodes"]["short"]["status"] == "refused"
    assert f"Report: {story.rack.output}/index.html" in story.alone.output


def test_a_look_fails_for_nothing_that_it_finds(story: Story) -> None:
    assert story.look.code == 0
    assert story.findings_look["findings"] == []
    assert [row["skipped"] for row in story.findings_look["checks"]] == [True]


def test_an_item_that_cannot_be_written_fails_its_node_and_the_others_are_written_and_kept(
    story: Story,
) -> None:
    assert story.stuck.failed == {"good"}
    (message,) = story.stuck.failures("good")
    assert "slices.nccl_conf[0] (file:/etc/nccl.conf)" in message
    assert "a folder" in message
    assert (story.rack.nodes[0].tree / "etc/profile.d/railwright-gpu-order.sh").is_file()
    assert story.changes_stuck["slices"]["gpu_order"]["changed"] is True


def test_what_a_node_sends_is_not_evaluated_and_makes_no_path(story: Story) -> None:
    assert not story.trap.exists()
    written = {path.relative_to(story.rack.output) for path in story.rack.output.rglob("*") if path.is_file()}
    nouns = ("changes", "facts", "findings", "plan", "policy", "ports")
    allowed = {Path(name, f"{noun}.json") for name in ("good", "short", "liar") for noun in nouns}
    of_the_run = ("report.json", "index.html", "fleet.json", "fleet-record.json")
    assert written <= allowed | {Path(name) for name in of_the_run}


def test_what_a_node_sends_overrides_no_variable_of_the_inventory(story: Story) -> None:
    (message,) = story.run.failures("liar")
    assert message.startswith("This node is not as it should be.")
    policy = json.loads((story.rack.output / "liar/policy.json").read_text("utf-8"))
    assert policy["workload"] == "train-large"
    facts = json.loads((story.rack.output / "liar/facts.json").read_text("utf-8"))
    assert facts["host"]["product"] == TEMPLATE.replace("TRAP", str(story.trap))


def test_an_inventory_can_state_the_policy_of_one_node(story: Story) -> None:
    hosts = yaml.safe_load(story.rack.inventory.read_text("utf-8"))["gpu_nodes"]["hosts"]
    assert hosts["short"]["node_policy"] == POLICIES["short"]
    assert inventory(story.rack.nodes)["gpu_nodes"]["hosts"].keys() == {"good", "short", "liar"}
