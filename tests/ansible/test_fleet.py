"""A fleet through Ansible: equal rails, one odd node, a node that joins, a node that is leased, and first boot alone.

What lies on the nodes is compared with files that a person has read, in tests/fleet; @POLICY@ stands for the digest of
the node's policy.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.playing import PROJECT, Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.fake_nodes import inventory

AGREED = PROJECT / "tests/fleet"
MACHINES: dict[str, tuple[Path | str, dict[str, Any]]] = {
    "node1": ("2s_8xh100_10xcx7", {}),
    "node2": ("2s_8xh100_10xcx7_backwards", {}),
    "node3": ("2s_7xh100_10xcx7", {}),
}
OLD = ("node1", "node2")
FILES = ("etc/nccl.conf", "etc/railwright/policy.json", "etc/railwright/gpus.tsv")
# One cable of node2 is a port too far; its NICs are called the other way round.
CABLING = "node,rail,leaf,port\n" + "".join(
    f"node{n},{rail},leaf{rail},Ethernet{n}\n" for n in (1, 2) for rail in range(8)
)


def lldp(nics: dict[str, tuple[str, str]]) -> str:
    """What `lldpcli -f json show neighbors` of lldpd 1.0.16 writes, shortened."""
    return json.dumps(
        {
            "lldp": {
                "interface": [
                    {
                        nic: {
                            "via": "LLDP",
                            "chassis": {leaf: {"id": {"type": "mac", "value": "d6:c0:66:0d:d8:86"}}},
                            "port": {"id": {"type": "ifname", "value": port}, "descr": port, "ttl": "120"},
                        }
                    }
                    for nic, (leaf, port) in nics.items()
                ]
            }
        }
    )


@dataclass
class Story:
    rack: Rack
    runs: dict[str, Run] = field(default_factory=dict)
    texts: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    fleet: dict[str, Any] = field(default_factory=dict)

    def play(self, name: str, playbook: str, *arguments: str, **variables: Any) -> None:
        self.runs[name] = self.rack.play(playbook, *arguments, variables=variables)
        self.fleet[name] = json.loads((self.rack.output / "fleet.json").read_text("utf-8"))
        self.look(name)

    def look(self, name: str) -> None:
        self.texts[name] = {
            node.name: {
                path: (node.tree / path).read_text("utf-8") for path in FILES if (node.tree / path).exists()
            }
            for node in self.rack.nodes
        }

    def lease(self, **left: str) -> None:
        data = inventory(self.rack.nodes)
        for name, why in left.items():
            data["gpu_nodes"]["hosts"][name]["node_left"] = why
        self.rack.inventory.write_text(yaml.safe_dump(data), encoding="utf-8")


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        story = Story(build_rack(place, MACHINES, plain_python("3.9", "3.10", "3.11", "3.12")))
        files = place.nodes / "cables"
        files.mkdir()
        (files / "cabling.csv").write_text(CABLING, encoding="utf-8")
        straight = (
            "enp12s0np0",
            "enp42s0np0",
            "enp65s0np0",
            "enp88s0np0",
            "enp134s0np0",
            "enp165s0np0",
            "enp189s0np0",
            "enp213s0np0",
        )
        right = {nic: (f"leaf{rail}", "Ethernet1") for rail, nic in enumerate(straight)}
        back = ("eth9", "eth8", "eth7", "eth4", "eth3", "eth2", "eth1", "eth0")
        wrong = {nic: (f"leaf{rail}", "Ethernet2") for rail, nic in enumerate(back)}
        wrong["eth4"] = ("leaf3", "Ethernet7")
        (files / "node1.json").write_text(lldp(right), encoding="utf-8")
        (files / "node2.json").write_text(lldp(wrong), encoding="utf-8")
        story.play("dry", "retune.yml", "--check", "--limit", "node1,node2")
        assert not (story.rack.output / "fleet-record.json").exists()
        story.play("old", "retune.yml", "--limit", "node1,node2")
        story.play("again", "retune.yml", "--limit", "node2")
        story.play("grown", "plan.yml")
        story.play(
            "cables",
            "look.yml",
            "--limit",
            "node1,node2",
            node_cabling=str(files / "cabling.csv"),
            node_neighbours={name: str(files / f"{name}.json") for name in OLD},
        )
        story.lease(node2="Slurm job 4711")
        story.play("leased", "retune.yml", "--limit", "node1,node2", node_policy={"workload": "moe-alltoall"})
        yield story


def boot(story: Story, name: str) -> None:
    """The node's own Python runs the program that lies on it, as its first boot does."""
    node = next(one for one in story.rack.nodes if one.name == name)
    for path in ("etc/nccl.conf", "etc/railwright/gpus.tsv"):
        (node.tree / path).unlink()
    subprocess.run(
        [str(node.python), "/usr/local/lib/railwright/railwright.pyz", "boot"],
        check=False,
        capture_output=True,
        timeout=200,
    )
    story.look(f"boot {name}")


@pytest.mark.parametrize("name", OLD)
def test_what_lies_on_a_node_is_what_a_person_has_agreed_to(story: Story, name: str) -> None:
    there = story.texts["old"][name]
    policy = there["etc/railwright/policy.json"]
    digest = sha256(policy.encode()).hexdigest()[:16]
    for path in ("etc/nccl.conf", "etc/railwright/gpus.tsv"):
        assert there[path] == (AGREED / name / Path(path).name).read_text("utf-8").replace("@POLICY@", digest)
    told = json.loads(policy)
    # What the fleet says; the rest of a policy is its defaults, which have tests of their own.
    agreed = json.loads((AGREED / name / "policy.json").read_text("utf-8"))
    assert {key: told[key] for key in agreed} == agreed


@pytest.mark.parametrize("name", OLD)
def test_the_node_alone_writes_the_same_bytes_at_boot(story: Story, name: str) -> None:
    wanted = dict(story.texts["leased"][name])
    boot(story, name)
    assert story.texts[f"boot {name}"][name] == wanted


def test_a_dry_run_and_a_second_run_change_nothing(story: Story) -> None:
    assert story.texts["dry"] == {name: {} for name in MACHINES}
    assert story.runs["again"].changed == {"node2": 0}
    assert story.texts["again"] == story.texts["old"]


def test_rails_are_equal_whatever_the_kernel_calls_the_nics(story: Story) -> None:
    nodes = story.fleet["old"]["nodes"]
    by_address = [{rail: end["pci"] for rail, end in nodes[name]["rails"].items()} for name in OLD]
    names = [[end["nic"] for end in nodes[name]["rails"].values()] for name in OLD]
    assert by_address[0] == by_address[1]
    assert names[0] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"]
    assert names[1] == ["mlx5_9", "mlx5_8", "mlx5_7", "mlx5_4", "mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0"]


def test_the_node_that_joins_is_new_and_odd_and_the_others_are_the_same(story: Story) -> None:
    nodes = story.fleet["grown"]["nodes"]
    assert nodes["node3"]["state"] == "new"
    for name in OLD:
        policies = [story.fleet[run]["nodes"][name]["policy"] for run in ("old", "grown")]
        # The program of a checkout that is being worked on is another one at every run.
        assert [{**policy, "boot": None} for policy in policies] == [{**policies[0], "boot": None}] * 2
    codes = [finding["code"] for finding in nodes["node3"]["findings"]]
    assert codes == ["fleet.gpu_missing"]
    assert story.runs["grown"].failed == {"node3"}
    assert "7 of 8 GPUs are visible" in story.runs["grown"].failures("node3")[0]


def test_a_cable_that_is_a_port_too_far_is_named_with_the_command_that_blinks_it(story: Story) -> None:
    findings = json.loads((story.rack.output / "node2/findings.json").read_text("utf-8"))
    assert findings  # leased by now: what the look found is in the fleet's own file
    (finding,) = story.fleet["cables"]["nodes"]["node2"]["findings"]
    assert finding["code"] == "cabling.misplaced"
    assert finding["why"] == "rail3 of node2 is on leaf3/Ethernet7, should be leaf3/Ethernet2"
    assert finding["remedy"].startswith(
        "move the cable to leaf3/Ethernet2; `ssh node2 sudo ethtool --identify eth4 30`"
    )
    assert story.fleet["cables"]["nodes"]["node1"]["findings"] == []


def test_a_leased_node_is_planned_and_listed_and_not_written(story: Story) -> None:
    nodes = story.fleet["leased"]["nodes"]
    assert (nodes["node2"]["state"], nodes["node2"]["left"]) == ("left", "Slurm job 4711")
    assert story.texts["leased"]["node2"] == story.texts["old"]["node2"]
    assert story.texts["leased"]["node1"] != story.texts["old"]["node1"]
    assert len(story.runs["leased"].results("node_write", "node1")) == 1
    assert story.runs["leased"].results("node_write", "node2") == []
    told = json.loads((story.rack.output / "node2/findings.json").read_text("utf-8"))
    assert told["checks"] == [
        {"name": "fleet.left", "ok": False, "skipped": True, "detail": "left alone: Slurm job 4711"}
    ]
