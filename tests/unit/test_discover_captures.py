"""Trees of /sys and /proc from real machines: the reader against hwloc and lscpu, which read the same trees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from defusedxml import ElementTree

from railwright.node.discover import discover
from railwright.node.discover.irq import read_actions
from railwright.node.model import Facts, format_cpulist, parse_cpulist, to_json
from tests.unit.hwloc import xml_of as hwloc_xml

CAPTURES = os.environ.get("RAILWRIGHT_CAPTURES")
if CAPTURES is None:
    pytest.skip("RAILWRIGHT_CAPTURES is not set", allow_module_level=True)
FOLDER = Path(CAPTURES)
# Most files of such a tree are of no interest to any reader here, and unpacking them takes its time.
LEFT_OUT = (
    "memory[0-9]*",
    "cpuidle",
    "cpufreq",
    "power",
    "hugepages",
    "microcode",
    "thermal_throttle",
    "cm_*",
    "counters",
)
TREES = sorted([*FOLDER.glob("hwloc_sysfs/*.tar.bz2"), *FOLDER.glob("lscpu/*.tar.gz")])


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Archive to the folder of the one machine in it, laid out once."""
    roots: dict[Path, Path] = {}

    def unpack(archive: Path) -> Path:
        if archive not in roots:
            folder = tmp_path_factory.mktemp("tree")
            subprocess.run(
                ["tar", "--no-same-owner", "--mode=u+rwX", "-xf", archive, "-C", folder],
                check=True,
                timeout=300,
            )
            (roots[archive],) = folder.iterdir()
        return roots[archive]

    return unpack


@pytest.fixture(params=TREES, ids=lambda path: path.name)
def tree(request: pytest.FixtureRequest, unpacked: Callable[[Path], Path]) -> Path:
    return unpacked(request.param)


def hwloc(root: Path) -> Any:
    """What hwloc makes of the tree, as its XML."""
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("hwloc is not installed")
    return ElementTree.fromstring(hwloc_xml(root, "--whole-io"))


def cpus_of(mask: str) -> str:
    """hwloc writes masks as "0x000000ff,0xffffffff", and leaves words of zeros empty."""
    words = "".join(f"{int(word or '0', 16):08x}" for word in mask.split(","))
    return format_cpulist(bit for bit in range(len(words) * 4) if int(words, 16) >> bit & 1)


def objects(topology: Any, kind: str) -> list[Any]:
    return [entry for entry in topology.iter("object") if entry.get("type") == kind]


def cores(facts: Facts) -> set[str]:
    return {format_cpulist(core.cpus) for core in facts.cpus.cores}


def test_cores_and_nodes_are_those_that_hwloc_sees(tree: Path) -> None:
    facts, topology = discover(tree), hwloc(tree)
    assert cores(facts) == {cpus_of(core.get("cpuset")) for core in objects(topology, "Core")}
    if facts.numa:
        nodes = {
            int(node.get("os_index")): cpus_of(node.get("cpuset")) for node in objects(topology, "NUMANode")
        }
        assert {node.id: node.cpus for node in facts.numa if node.id in nodes} == nodes
        # hwloc leaves out nodes without CPUs and memory, and folds memory-only ones into their neighbours.
        assert all(not node.cpus for node in facts.numa if node.id not in nodes)


def test_l3_groups_are_those_that_hwloc_sees(tree: Path) -> None:
    facts, topology = discover(tree), hwloc(tree)
    groups: dict[int, set[int]] = defaultdict(set)
    for core in facts.cpus.cores:
        if core.l3 is not None:
            groups[core.l3].update(core.cpus)
    assert {format_cpulist(group) for group in groups.values()} == {
        cpus_of(cache.get("cpuset")) for cache in objects(topology, "L3Cache")
    }


def test_ports_stand_on_the_functions_on_which_hwloc_puts_them(tree: Path) -> None:
    facts, topology = discover(tree), hwloc(tree)
    expected: set[tuple[str | None, str | None]] = set()
    for device in objects(topology, "PCIDev"):
        names = {child.get("name") for child in device if child.get("type") == "OSDev"}
        interfaces = {child.get("name") for child in device if child.get("osdev_type") in {"2", "3"}}
        if names & interfaces:
            expected.update((device.get("pci_busid"), name) for name in interfaces)
    found = {(nic.address, name) for nic in facts.nics for name in (nic.rdma, nic.netdev) if name is not None}
    # hwloc 2 knows no PCI domain above 16 bits.
    assert {
        (address, name) for address, name in found if len(str(address)) == len("0000:00:00.0")
    } == expected


def test_bridges_above_a_port_are_those_that_hwloc_nests(tree: Path) -> None:
    facts, topology = discover(tree), hwloc(tree)
    parents = {
        child.get("pci_busid"): bridge.get("pci_busid")
        for bridge in objects(topology, "Bridge")
        for child in bridge
        if child.get("pci_busid") is not None
    }
    for device in facts.pci:
        if device.address in parents:
            above = parents[device.address]
            assert device.parent == (above if above is not None else f"pci{device.address[:7]}")


@pytest.mark.parametrize("name", ["x86_64-64cpu", "x86_64-64cpu-linux6.2", "x86_64-epyc_7451"])
def test_lscpu_counts_the_same(name: str, unpacked: Callable[[Path], Path]) -> None:
    facts = discover(unpacked(FOLDER / f"lscpu/{name}.tar.gz"))
    text = (FOLDER / f"lscpu/lscpu-{name}.txt").read_text(encoding="utf-8")
    stated = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    told = {key.strip(): value.strip() for key, _, value in stated}
    # The columns are CPU, Core, Socket, Node, (none), L1d, L1i, L2, L3: numbers that lscpu gives itself.
    table = [line.split(",") for line in text.splitlines() if line[:1].isdigit() and line.count(",") == 8]
    by_core: dict[tuple[str, str], set[int]] = defaultdict(set)
    by_l3: dict[str, set[int]] = defaultdict(set)
    by_node: dict[int, set[int]] = defaultdict(set)
    for row in table[: int(told["CPU(s)"])]:
        by_core[row[1], row[2]].add(int(row[0]))
        by_l3[row[8]].add(int(row[0]))
        by_node[int(row[3])].add(int(row[0]))
    assert cores(facts) == {format_cpulist(group) for group in by_core.values()}
    assert {core.l3 for core in facts.cpus.cores} == {min(group) for group in by_l3.values()}
    assert {node.id: set(parse_cpulist(node.cpus, "")) for node in facts.numa} == dict(by_node)
    assert len({core.socket for core in facts.cpus.cores}) == int(told["Socket(s)"])
    assert (facts.cpus.vendor, facts.cpus.model_name) == (told["Vendor ID"], told["Model name"])
    assert (facts.cpus.family, facts.cpus.model) == (int(told["CPU family"]), int(told["Model"]))


@pytest.mark.parametrize("name", ["40intel64-2g2n4c+pcilocality", "nvidia-dgx-gb10"])
def test_hwlocs_recorded_answer_holds(name: str, unpacked: Callable[[Path], Path]) -> None:
    facts = discover(unpacked(FOLDER / f"hwloc_sysfs/{name}.tar.bz2"))
    recorded = ElementTree.parse(FOLDER / f"hwloc_sysfs/{name}.xml").getroot()
    nodes = {
        int(node.get("os_index")): (cpus_of(node.get("cpuset")), int(node.get("local_memory")))
        for node in objects(recorded, "NUMANode")
    }
    assert {node.id: node.cpus for node in facts.numa} == {
        number: cpus for number, (cpus, _) in nodes.items()
    }
    assert {node.id: node.memory for node in facts.numa} == {
        number: memory for number, (_, memory) in nodes.items()
    }


def test_a_domain_of_32_bits_keeps_all_its_digits(unpacked: Callable[[Path], Path]) -> None:
    facts = discover(unpacked(FOLDER / "hwloc_sysfs/2pa-pcidomain32bits.tar.bz2"))
    assert [(nic.name, nic.address, nic.mac) for nic in facts.nics] == [
        ("ens3", "0000:00:03.0", "06:7a:4c:00:00:22")
    ]
    assert facts.host.virtual == "kvm"


def test_distances_are_those_in_hwlocs_recorded_matrix(unpacked: Callable[[Path], Path]) -> None:
    facts = discover(unpacked(FOLDER / "hwloc_sysfs/48amd64-4pa2n6c-sparse.tar.bz2"))
    lines = (FOLDER / "hwloc_sysfs/48amd64-4pa2n6c-sparse.console").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Relative latency matrix"))
    rows = [tuple(map(int, line.split()[1:])) for line in lines[start + 2 : start + 10]]
    assert [node.distances for node in facts.numa] == rows


def test_software_rdma_is_left_out_and_named(unpacked: Callable[[Path], Path]) -> None:
    facts = discover(unpacked(FOLDER / "hwloc_sysfs/32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2"))
    assert [nic.name for nic in facts.nics] == ["eth0", "eth1", "mlx4_0"]
    assert any("scif0" in note for note in facts.notes)


def test_facts_of_every_tree_survive_json(tree: Path) -> None:
    facts = discover(tree)
    assert Facts.read(json.loads(json.dumps(to_json(facts)))) == facts


def test_a_table_of_interrupts_names_every_vector() -> None:
    text = (FOLDER / "misc/proc-interrupts-bad.txt").read_text(encoding="utf-8")
    actions = read_actions(text, "interrupts")
    assert actions[124] == "mlx5_comp0@pci:0000:65:00.0"
    assert all("@pci:0000:65:00.0" in action for action in actions.values())
