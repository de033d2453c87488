"""InfiniBand ports: their subnet manager and their partitions, as facts and as findings."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from railwright.node.check import check, checks
from railwright.node.discover import discover
from railwright.node.discover.tree import Tree
from railwright.node.model import (
    Facts,
    InfinibandPort,
    InputError,
    NetworkFacts,
    Nic,
    Plan,
    PlannedNic,
    Witness,
)
from railwright.node.model import facts as facts_model
from railwright.node.model import plan as plan_model
from tests.unit.small_machine import gpu_node

PORT = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/infiniband/mlx5_0/ports/1"
HEALTHY = {
    "lid": "0x11",
    "sm_lid": "0x1",
    "phys_state": "5: LinkUp",
    "pkeys/0": "0xffff",
    "pkeys/1": "0x0000",
}


def tree(root: Path, **files: str | None) -> Path:
    """A node of two rails; the port of rail 0 with these files, by the last part of their path."""
    gpu_node(root)
    for name, text in {
        **HEALTHY,
        **{key.replace("pkeys_", "pkeys/"): text for key, text in files.items()},
    }.items():
        if text is not None:
            (root / PORT / name).parent.mkdir(parents=True, exist_ok=True)
            (root / PORT / name).write_text(f"{text}\n", encoding="ascii")
    return root


def facts(*, managers: tuple[int, ...] | None = (), **fields: Any) -> Facts:
    known: dict[str, Any] = {"lid": 17, "sm_lid": 1, "pkeys": ("0xffff",), "physical": "LinkUp", **fields}
    nic = Nic(name="mlx5_0", rdma="mlx5_0", port=1, link_layer="InfiniBand", state="active", rate=400_000)
    network = NetworkFacts(infiniband=(InfinibandPort("mlx5_0", **known),), subnet_managers=managers)
    return Facts(facts_model.SCHEMA, (Witness("sysfs", "/"),), nics=(nic,), network=network)


def plan(role: str = "rail") -> Plan:
    nic = PlannedNic("mlx5_0", None, role, 0, None, "")
    return Plan(plan_model.SCHEMA, "planned", nics=(nic,))


def found(seen: Facts, role: str = "rail") -> list[tuple[str, str, str]]:
    return [(finding.code, finding.severity, finding.where) for finding in check(plan(role), seen)]


def test_the_reader_tells_lid_manager_partitions_and_link(tmp_path: Path) -> None:
    network = discover(tree(tmp_path, pkeys_2="0x8001")).network
    assert network.infiniband[0] == InfinibandPort("mlx5_0", 17, 1, ("0xffff", "0x8001"), "LinkUp")
    # The other rail shows nothing of it: unknown, not zero.
    assert network.infiniband[1] == InfinibandPort("mlx5_1")
    assert network.subnet_managers is None


def test_the_reader_finds_opensm_among_the_processes(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for number, name in ((1, "systemd"), (812, "opensm"), (99, "opensm-watch"), (4711, "opensm")):
        (root / f"proc/{number}").mkdir(parents=True)
        (root / f"proc/{number}/comm").write_text(f"{name}\n", encoding="ascii")
    assert discover(root).network.subnet_managers == (812, 4711)


def test_a_process_that_ends_while_it_is_asked_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path)
    for number in (1, 812):
        (root / f"proc/{number}").mkdir(parents=True)
        (root / f"proc/{number}/comm").write_text("opensm\n", encoding="ascii")
    read = Tree._read

    def gone(self: Tree, path: str, limit: int) -> bytes:
        if path == "proc/1/comm":
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return read(self, path, limit)

    monkeypatch.setattr(Tree, "_read", gone)
    assert discover(root).network.subnet_managers == (812,)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pkeys_1", "full", "expected a partition key like 0xffff"),
        ("phys_state", "up and running", "expected a state like '5: LinkUp'"),
        ("lid", "17 or so", "expected a whole number"),
        ("sm_lid", "", "expected a whole number"),
    ],
)
def test_what_no_kernel_writes_names_the_file(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        discover(tree(tmp_path, **{name: text}))
    assert name.replace("pkeys_", "pkeys/") in caught.value.where
    assert words in str(caught.value)


def test_a_healthy_port_has_no_finding_and_good_rows() -> None:
    assert found(facts()) == []
    rows = [row for row in checks(plan(), facts()) if row["name"].startswith("infiniband.")]
    assert [row["name"] for row in rows] == ["infiniband.sm", "infiniband.pkey", "infiniband.opensm"]
    assert all(row["ok"] for row in rows)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lid": 0, "sm_lid": 0}, "no subnet manager has given it an address"),
        ({"sm_lid": 0}, "has LID 17, and no"),
    ],
)
def test_a_port_without_a_subnet_manager_is_named(fields: dict[str, Any], words: str) -> None:
    assert found(facts(**fields)) == [("infiniband.sm", "error", "mlx5_0")]
    (finding,) = check(plan(), facts(**fields))
    assert words in finding.why


def test_a_port_without_a_link_is_not_blamed_on_the_subnet_manager() -> None:
    assert found(facts(lid=0xFFFF, sm_lid=0, physical="Polling"), "down") == []


@pytest.mark.parametrize("keys", [(), ("0x7fff",), ("0x7fff", "0x0001")])
def test_a_limited_member_is_named(keys: tuple[str, ...]) -> None:
    assert found(facts(pkeys=keys)) == [("infiniband.pkey", "error", "mlx5_0")]


@pytest.mark.parametrize("keys", [("0xffff",), ("0x7fff", "0x8001")])
def test_full_membership_of_one_partition_is_enough(keys: tuple[str, ...]) -> None:
    assert found(facts(pkeys=keys)) == []


def test_opensm_on_a_host_is_named_with_its_process() -> None:
    assert found(facts(managers=(812,))) == [("infiniband.opensm", "warning", "process 812")]


def test_what_the_witness_does_not_show_is_not_good() -> None:
    dark = facts(managers=None, lid=None, sm_lid=None, pkeys=None, physical=None)
    rows = [row for row in checks(plan(), dark) if row["name"].startswith("infiniband.")]
    assert [(row["ok"], row["skipped"]) for row in rows] == [(False, True)] * 3
    assert found(dark) == []


def test_ports_that_are_none_of_the_plans_are_left_alone() -> None:
    assert found(facts(lid=0, sm_lid=0, pkeys=()), "nvlink-mgmt") == []
