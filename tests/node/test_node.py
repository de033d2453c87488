"""What other tools on a node say of what was planned for it: none of Railwright's own code runs here.

`pytest tests/node --hosts=paramiko://gpu01,paramiko://gpu02 --node-output out`
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pytest

Plan = dict[str, Any]
Entries = dict[str, list[dict[str, Any]]]


def cpus(text: str) -> set[int]:
    """A CPU list as the kernel writes it."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@dataclass(frozen=True)
class Vector:
    """An interrupt: its name in the last column of /proc/interrupts, the CPUs asked for and those that serve it."""

    number: int
    name: str
    asked: frozenset[int]
    serving: frozenset[int]


Vectors = dict[str, list[Vector]]


@pytest.fixture(scope="module")
def vectors(host: Any, entries: Entries) -> Vectors:
    """The interrupts of each planned function."""
    lines = host.check_output("awk '{print $1, $NF}' /proc/interrupts").splitlines()
    names = dict(line.split(": ", 1) for line in lines if ": " in line)
    shown = host.check_output(
        "cd /proc/irq && grep -H . */smp_affinity_list */effective_affinity_list"
    ).splitlines()
    places = {path: frozenset(cpus(text)) for path, _, text in (line.partition(":") for line in shown)}
    found = {}
    for entry in entries.get("irq_affinity", []):
        numbers = host.check_output(f"ls /sys/bus/pci/devices/{entry['device']}/msi_irqs").split()
        found[entry["device"]] = [
            Vector(int(n), names[n], places[f"{n}/smp_affinity_list"], places[f"{n}/effective_affinity_list"])
            for n in sorted(numbers, key=int)
            if n in names
        ]
    return found


def test_lspci_lists_the_planned_gpus(host: Any, plan: Plan) -> None:
    listed = host.check_output("lspci -Dn -d 10de:").splitlines()
    gpus = sorted(line.split()[0] for line in listed if line.split()[1].startswith(("0302", "0300")))
    assert gpus == sorted(gpu["pci"] for gpu in plan["gpus"])


def test_files_have_the_planned_bytes_mode_and_owner(host: Any, entries: Entries) -> None:
    paths = " ".join(entry["path"] for entry in entries["file"])
    digests = [line.split()[0] for line in host.check_output(f"sha256sum {paths}").splitlines()]
    shown = host.check_output(f"stat -c '%a %U:%G' {paths}").splitlines()
    for entry, digest, mode in zip(entries["file"], digests, shown, strict=True):
        assert digest == (entry.get("sha256") or hashlib.sha256(entry["content"].encode()).hexdigest()), (
            entry["path"]
        )
        assert mode == f"{entry['mode'].lstrip('0')} root:root", entry["path"]


def test_no_half_written_file_is_left_beside_them(host: Any, entries: Entries) -> None:
    folders = sorted({entry["path"].rpartition("/")[0] for entry in entries["file"]})
    hidden = host.check_output(f"find {' '.join(folders)} -maxdepth 1 -name '.*.railwright'")
    assert hidden == ""


def test_sysctl_says_the_planned_values(host: Any, entries: Entries) -> None:
    names = [entry["name"] for entry in entries["sysctl"]]
    values = host.check_output(f"sysctl -n {' '.join(names)}").splitlines()
    said = dict(zip(names, (value.split() for value in values), strict=True))
    assert said == {entry["name"]: entry["value"].split() for entry in entries["sysctl"]}


def test_systemctl_says_that_units_are_enabled_and_active(host: Any, entries: Entries) -> None:
    for entry in entries["systemd_unit"]:
        unit = entry["name"]
        assert host.run(f"systemctl is-enabled {unit}").stdout.strip() == "enabled"
        assert host.run(f"systemctl is-active {unit}").stdout.strip() == "active"
        shown = dict(
            line.split("=", 1)
            for line in host.check_output(
                f"systemctl show -p Result,ExecMainStatus,NeedDaemonReload,FragmentPath {unit}"
            ).splitlines()
        )
        # Only a service has a program of its own.
        ended = {"ExecMainStatus": "0"} if unit.endswith(".service") else {}
        assert shown == {
            "Result": "success",
            "NeedDaemonReload": "no",
            "FragmentPath": f"/etc/systemd/system/{unit}",
            **ended,
        }


def test_the_boot_unit_ran_in_this_boot(host: Any) -> None:
    said = host.check_output("journalctl -b -q --no-pager -o cat -u railwright.service")
    assert "Finished railwright.service" in said


def test_systemd_gives_new_services_the_gpu_order(host: Any, plan: Plan) -> None:
    if "gpu_order" in plan["slices"]:
        shown = host.check_output("systemctl show-environment; systemctl show -p DefaultEnvironment")
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in shown


def test_completion_vectors_take_turns_on_the_planned_cpus(entries: Entries, vectors: Vectors) -> None:
    for entry in entries.get("irq_affinity", []):
        allowed = cpus(entry["cpus"])
        data = [vector for vector in vectors[entry["device"]] if "_comp" in vector.name]
        assert data, entry["device"]
        for vector in data:
            assert len(vector.asked) == 1, vector
            assert vector.serving == vector.asked, vector
            assert vector.asked <= allowed, vector
        counts = [sum(cpu in vector.asked for vector in data) for cpu in allowed]
        assert max(counts) - min(counts) <= 1, "one CPU serves more than its turn"


def test_control_vectors_are_on_the_planned_control_cpus(entries: Entries, vectors: Vectors) -> None:
    for entry in entries.get("irq_affinity", []):
        if "control_cpus" in entry:
            mlx5 = [one for one in vectors[entry["device"]] if one.name.startswith("mlx5_")]
            control = [one for one in mlx5 if "_comp" not in one.name]
            assert control, entry["device"]
            assert {one.asked for one in control} == {frozenset(cpus(entry["control_cpus"]))}


def test_interrupts_are_served_on_their_nics_own_numa_node(host: Any, entries: Entries) -> None:
    for entry in entries.get("irq_affinity", []):
        local = cpus(host.check_output(f"cat /sys/bus/pci/devices/{entry['device']}/local_cpulist"))
        assert cpus(entry["cpus"]) <= local, entry["device"]


def test_no_interrupt_of_a_rail_is_on_a_ranks_cpu(plan: Plan, vectors: Vectors) -> None:
    ranks = set().union(*(cpus(gpu["cpus"]) for gpu in plan["gpus"] if gpu["cpus"]))
    for vector in (one for many in vectors.values() for one in many):
        assert not vector.serving & ranks, vector


def test_nccls_list_names_rdma_devices_that_are_there(host: Any, plan: Plan) -> None:
    listed = plan["nccl"].get("NCCL_IB_HCA")
    if listed is not None:
        devices = {name.partition(":")[0] for name in listed.lstrip("=").split(",")}
        assert devices <= set(host.check_output("ls /sys/class/infiniband").split())
        assert f"NCCL_IB_HCA={listed}" in host.check_output("cat /etc/nccl.conf").splitlines()


def test_the_default_route_is_on_no_rail(host: Any, plan: Plan) -> None:
    device = host.check_output("ip -o route show default").split()
    name = device[device.index("dev") + 1] if "dev" in device else ""
    rails = {nic["name"] for nic in plan["nics"] if nic["role"] == "rail"}
    place = f"/sys/class/net/{name}/device/infiniband"
    behind = host.check_output(f"ls {place} 2>/dev/null || true").split() if name else []
    assert not rails & set(behind)
