"""Recorded machines: the reader gives back what their descriptions state, and agrees with lspci and hwloc on them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from defusedxml import ElementTree

from railwright.node.discover import discover
from railwright.node.model import Facts, InputError, format_cpulist, to_json
from tests.machinery import Machine, build
from tests.unit.hwloc import xml_of as hwloc_xml

MACHINES = Path(__file__).resolve().parents[1] / "machines"
NAMES = sorted(path.parent.name for path in MACHINES.glob("*/machine.yml"))
STATES = {"ACTIVE": "active", "DOWN": "down", "INIT": "init", "ARMED": "armed"}
PORTS = {
    "root-port": "root",
    "upstream": "upstream",
    "downstream": "downstream",
    "endpoint": "endpoint",
    "integrated": "endpoint",
}


@pytest.fixture(scope="module", params=NAMES)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Machine, Path, Facts]:
    """The description, its tree and what the reader makes of the tree."""
    root = tmp_path_factory.mktemp("machine") / request.param
    machine = build(MACHINES / request.param, root)
    return machine, root, discover(root)


Recorded = tuple[Machine, Path, Facts]


def test_gpus_are_those_described(recorded: Recorded) -> None:
    machine, _, facts = recorded
    gpus = [
        device
        for device in machine.devices
        if device.part.vendor == 0x10DE and device.part.class_code >> 8 in {0x300, 0x302}
    ]
    assert [gpu.address for gpu in facts.gpus] == [str(device.address) for device in gpus]
    assert [gpu.index for gpu in facts.gpus] == list(range(len(gpus)))
    if machine.nvidia is not None:
        assert [gpu.uuid for gpu in facts.gpus] == [machine.nvidia.uuids[device.address] for device in gpus]
        assert {gpu.model for gpu in facts.gpus} == {machine.nvidia.model}


def test_functions_have_the_parents_parts_and_switches_described(recorded: Recorded) -> None:
    machine, _, facts = recorded
    described = {str(device.address): device for device in machine.devices}
    for device in facts.pci:
        stated = described[device.address]
        assert device.parent == (f"pci{stated.host}" if stated.under is None else str(stated.under))
        assert device.vendor == f"0x{stated.part.vendor:04x}"
        assert device.device == f"0x{stated.part.device:04x}"
        assert device.class_code == f"0x{stated.part.class_code:06x}"
        assert device.driver == stated.driver
        assert device.port == PORTS.get(stated.part.port)
        assert device.acs is not None
        assert device.acs.capability == (stated.part.acs or ())
        assert set(device.acs.control) == set(stated.acs)
        if stated.part.port != "conventional":
            assert device.mrrs == stated.read_request
            assert device.mps == stated.part.payload
            assert device.relaxed_ordering == stated.part.relaxed_ordering
    kept = {device.address for device in facts.pci}
    endpoints = {
        str(d.address)
        for d in machine.devices
        if d.part.rdma or d.part.class_code >> 8 in {0x108, 0x302, 0x680}
    }
    assert endpoints <= kept
    assert not any(described[address].part.name.startswith("bmc") for address in kept)


def test_ports_are_those_described(recorded: Recorded) -> None:
    machine, _, facts = recorded
    stated = sorted(machine.nics, key=lambda nic: nic.at)
    assert [(nic.address, nic.rdma, nic.netdev) for nic in facts.nics] == [
        (str(nic.at), nic.rdma, nic.netdev) for nic in stated
    ]
    for found, nic in zip(facts.nics, stated, strict=True):
        if nic.rdma is not None:
            assert found.port == 1
            assert found.guid == _guid(nic.node_guid)
            assert found.sys_image_guid == _guid(nic.image_guid)
        assert found.state == STATES[nic.state]
        assert found.rate == (nic.gbps * 1000 if nic.state != "DOWN" else None)
        assert found.link_layer == nic.layer
        if nic.netdev is not None and nic.layer == "Ethernet":
            assert (found.mac, found.mtu) == (nic.mac, nic.mtu)
        if nic.netdev is not None and nic.state == "ACTIVE":
            assert set(found.addresses) == {str(address) for address in (*nic.ipv4, *nic.ipv6)}
        assert found.default_route == (nic.label == machine.default_nic)


def _guid(value: int) -> str:
    return ":".join(f"{value:016x}"[n : n + 4] for n in range(0, 16, 4))


def test_interrupts_of_rails_are_where_described(recorded: Recorded) -> None:
    machine, _, facts = recorded
    for nic in machine.nics:
        queues = [
            irq
            for irq in facts.irqs
            if irq.device == str(nic.at) and (irq.action or "").startswith("mlx5_comp")
        ]
        if nic.channels is not None:
            assert len(queues) == nic.channels
            assert {irq.action for irq in queues} == {
                f"mlx5_comp{n}@pci:{nic.at}" for n in range(nic.channels)
            }
        if nic.irq_cpus is not None:
            assert [irq.effective for irq in queues] == [
                str(nic.irq_cpus[n % len(nic.irq_cpus)]) for n in range(len(queues))
            ]


def test_host_is_the_one_described(recorded: Recorded) -> None:
    machine, _, facts = recorded
    host = facts.host
    assert (host.name, host.kernel, host.cmdline) == (machine.hostname, machine.kernel, machine.cmdline)
    assert (host.os_id, host.os_version) == (
        machine.os_release.get("ID"),
        machine.os_release.get("VERSION_ID"),
    )
    assert (host.boot_id, host.driver) == (
        machine.boot_id,
        machine.nvidia.version if machine.nvidia else None,
    )
    assert (host.virtual != "") == ("hypervisor" in machine.cpus.flags.split())
    assert {module.name for module in host.modules or ()} <= {module.name for module in machine.modules}
    assert {
        module.name for module in machine.modules if module.name.startswith(("nvidia", "mlx5", "ib_"))
    } <= {module.name for module in host.modules or ()}
    for key, value in machine.sysctls.items():
        if key in host.sysctls:
            assert host.sysctls[key] == " ".join(value.split())


def test_facts_survive_json(recorded: Recorded) -> None:
    _, _, facts = recorded
    assert Facts.read(json.loads(json.dumps(to_json(facts)))) == facts


def test_hwloc_sees_the_same_cores_and_nodes(recorded: Recorded) -> None:
    _, root, facts = recorded
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("hwloc is not installed")
    seen = [entry.attrib for entry in ElementTree.fromstring(hwloc_xml(root)).iter("object")]
    assert Counter(_mask(entry["cpuset"]) for entry in seen if entry["type"] == "Core") == Counter(
        format_cpulist(core.cpus) for core in facts.cpus.cores
    )
    assert {
        int(entry["os_index"]): _mask(entry["cpuset"]) for entry in seen if entry["type"] == "NUMANode"
    } == {node.id: node.cpus for node in facts.numa}


def _mask(text: str) -> str:
    digits = "".join(f"{int(word or '0', 16):08x}" for word in text.split(","))
    return format_cpulist(bit for bit in range(len(digits) * 4) if int(digits, 16) >> bit & 1)


def test_lspci_reads_the_same_registers(recorded: Recorded) -> None:
    _, root, facts = recorded
    text = lspci(root)
    blocks = {block.split(" ", 1)[0]: block for block in text.split("\n\n") if block.strip()}
    for device in facts.pci:
        block = blocks[device.address]
        sizes = re.search(r"MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes", block)
        capable = re.search(r"LnkCap:.*?Speed ([\d.]+)GT/s, Width x(\d+)", block)
        control = re.search(r"ACSCtl:\s+(.*)", block)
        node = re.search(r"NUMA node: (\d+)", block)
        assert (device.mps, device.mrrs) == (tuple(map(int, sizes.groups())) if sizes else (None, None))
        assert device.relaxed_ordering == ("RlxdOrd+" in block if sizes else None)
        assert device.numa == (int(node[1]) if node else None)
        assert device.acs is not None
        assert set(device.acs.control) == set(re.findall(r"(\w+)\+", control[1]) if control else ())
        if capable is not None and device.link.max_width is not None:
            assert (device.link.max_speed, device.link.max_width) == (float(capable[1]), int(capable[2]))


def lspci(root: Path) -> str:
    """What lspci reads from the tree's own sysfs."""
    if shutil.which("lspci") is None:
        pytest.skip("pciutils is not installed")
    run = subprocess.run(
        ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={root}/sys/bus/pci", "-D", "-nn", "-vvv"],
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=60,
    )
    return run.stdout


def test_a_garbled_link_width_is_refused(tmp_path: Path) -> None:
    build(MACHINES / "rejects/garbled_link_width", tmp_path / "tree")
    with pytest.raises(InputError, match=re.escape("0000:0f:00.0/max_link_width: found 'x1?'")):
        discover(tmp_path / "tree")


def test_a_config_space_that_ends_in_its_header_is_refused(tmp_path: Path) -> None:
    build(MACHINES / "rejects/unreadable_config", tmp_path / "tree")
    with pytest.raises(InputError, match=r"0000:0c:00\.0/config: holds 20 bytes"):
        discover(tmp_path / "tree")


def test_a_machine_without_gpus_is_read(tmp_path: Path) -> None:
    build(MACHINES / "rejects/no_gpu", tmp_path / "tree")
    facts = discover(tmp_path / "tree")
    assert (facts.gpus, len(facts.nics)) == ((), 10)
