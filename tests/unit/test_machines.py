"""The recorded machines: that their trees say what their descriptions say.

Truth comes from other readers than ours: lspci and hwloc read the trees, a live kernel answers for the formats of
/proc/net, published matrices and topology files answer for what is near what.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from ipaddress import IPv4Interface
from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.machinery import Machine, MachineError, build, build_from_nccl_xml, load, tree_of
from tests.machinery.cpusets import format_list, format_mask, parse_list, parse_mask
from tests.machinery.fields import merge
from tests.machinery.functions import functions
from tests.machinery.interrupts import interrupts
from tests.machinery.iommu import iommu_groups
from tests.machinery.model import Address
from tests.machinery.topology import topology

ROOT = Path(__file__).resolve().parents[2]
MACHINES = ROOT / "tests" / "machines"
NAMES = (
    "1s_8xh200_8xcx7_vm",
    "2s_4xh100pcie_2xcx6",
    "2s_7xh100_10xcx7",
    "2s_8xh100_10xcx7",
    "2s_8xh100_10xcx7_backwards",
    "2s_8xh200_8xcx7_snc2",
)
REJECTS = tuple(sorted(path.name for path in (MACHINES / "rejects").iterdir()))
EIGHT = MACHINES / "2s_8xh100_10xcx7"


def need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def captures() -> Path:
    folder = os.environ.get("RAILWRIGHT_CAPTURES")
    if folder is None:
        pytest.skip("RAILWRIGHT_CAPTURES is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tree of a machine by name, laid out once."""
    folder = tmp_path_factory.mktemp("machines")

    def tree(name: str) -> Path:
        dest = folder / name.replace("/", "-")
        if not dest.exists():
            build(MACHINES / name, dest)
        return dest

    return tree


# ----- lspci --------------------------------------------------------------------------------------------------------


def lspci(root: Path, *arguments: str) -> str:
    need("lspci")
    command = ["lspci", "-O", f"sysfs.path={root}/sys/bus/pci", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def blocks(text: str) -> dict[str, str]:
    """lspci -Dvvv by address."""
    return {block.split(" ", 1)[0]: block for block in text.strip().split("\n\n")}


def found(pattern: str, block: str) -> str | None:
    match = re.search(pattern, block, re.MULTILINE)
    return None if match is None else match[1]


def on(words: str | None) -> set[str]:
    """The words of an lspci flag list that end in +."""
    return {word[:-1] for word in (words or "").split() if word.endswith("+")}


@pytest.mark.parametrize("name", NAMES)
def test_lspci_reads_each_function_as_described(name: str, built: Callable[[str], Path]) -> None:
    machine = load(MACHINES / name)
    seen = blocks(lspci(built(name), "-Dnvvv"))
    assert sorted(seen) == [str(device.address) for device in machine.devices]
    for device in machine.devices:
        block, part = seen[str(device.address)], device.part
        revision = f" (rev {part.revision:02x})" if part.revision else ""
        head = f"{device.address} {part.class_code >> 8:04x}: {part.vendor:04x}:{part.device:04x}{revision}"
        assert block.splitlines()[0].startswith(head)
        numa = machine.hosts[device.host]
        assert found(r"NUMA node: (\d+)", block) == (None if numa < 0 else str(numa))
        assert found(r"Kernel driver in use: (\S+)", block) == device.driver
        if part.port == "conventional":
            assert "Express" not in block
            continue
        assert found(r"Subsystem: (\S+)", block) == f"{part.subvendor:04x}:{part.subdevice:04x}"
        assert found(r"LnkCap:.*Speed (\S+)GT/s", block) == str(device.link.speed).removesuffix(".0")
        assert found(r"LnkCap:.*Width x(\d+)", block) == str(device.link.width)
        assert found(r"MaxReadReq (\d+) bytes", block) == str(device.read_request)
        assert found(r"DevCtl:(?s:.*?)MaxPayload (\d+) bytes", block) == str(part.payload)
        assert (f"RlxdOrd{'+' if device.relaxed_ordering else '-'}") in block
        assert on(found(r"ACSCap:\s+(.*)", block)) == set(part.acs or ())
        assert on(found(r"ACSCtl:\s+(.*)", block)) == set(device.acs)
        if device.serial is not None:
            assert found(r"Device Serial Number (\S+)", block) == device.serial
        if part.msix:
            assert found(r"MSI-X: Enable. Count=(\d+)", block) == str(part.msix)


@pytest.mark.parametrize("name", NAMES)
def test_lspci_finds_the_tree_of_buses_whole(name: str, built: Callable[[str], Path]) -> None:
    machine = load(MACHINES / name)
    seen = blocks(lspci(built(name), "-Dnvvv"))
    ranges = {}
    for address, block in seen.items():
        match = re.search(r"Bus: primary=(..), secondary=(..), subordinate=(..)", block)
        if match:
            primary, secondary, subordinate = (int(bus, 16) for bus in match.groups())
            assert f"{primary:02x}" == address.split(":")[1]
            ranges[address] = (secondary, subordinate)
    for device in machine.devices:
        if device.under is not None:
            assert ranges[str(device.under)][0] == device.address.bus
        above = device.under
        while above is not None:
            low, high = ranges[str(above)]
            assert low <= device.address.bus <= high
            above = machine.by_address[above].under


@pytest.mark.parametrize("name", NAMES)
def test_each_window_holds_what_lies_behind_its_bridge_and_no_two_ranges_meet(
    name: str, built: Callable[[str], Path]
) -> None:
    machine = load(MACHINES / name)
    tree = built(name)
    ranges: list[tuple[int, int]] = []
    for device in machine.devices:
        rows = resource(tree, str(device.address))
        ranges += [(start, end) for start, end, flags in rows[:6] if flags]
        for start, end, flags in [row for row in rows[:6] if row[2]]:
            above = device.under
            while above is not None:
                window = resource(tree, str(above))[15 if flags & 0x2000 else 14]
                assert window[0] <= start
                assert end <= window[1]
                above = machine.by_address[above].under
    for (_, end), (start, _) in zip(sorted(ranges), sorted(ranges)[1:], strict=False):
        assert end < start


def resource(tree: Path, address: str) -> list[tuple[int, int, int]]:
    text = (tree / "sys/bus/pci/devices" / address / "resource").read_text()
    return [
        (int(start, 16), int(end, 16), int(flags, 16))
        for start, end, flags in (line.split() for line in text.splitlines())
    ]


def test_lspci_reads_the_sizes_of_an_h100(built: Callable[[str], Path]) -> None:
    block = blocks(lspci(built("2s_8xh100_10xcx7"), "-Dnvvv", "-s", "0f:00.0"))["0000:0f:00.0"]
    assert re.findall(r"Region (\d): Memory at \w+ \(64-bit, prefetchable\) \[size=(\w+)\]", block) == [
        ("0", "16M"),
        ("2", "128G"),
        ("4", "32M"),
    ]


def test_lspci_reads_part_number_and_slot_of_a_rail(built: Callable[[str], Path]) -> None:
    block = blocks(lspci(built("2s_8xh100_10xcx7"), "-Dnvvv", "-s", "0c:00.0"))["0000:0c:00.0"]
    assert found(r"\[PN\] Part number: (\S+)", block) == "MCX75310AAS-NEAT"
    assert "checksum good" in block
    assert found(r"Physical Slot: (\S+)", block) == "41"
    assert "10BitTagReq+ OBFF" in block


def test_a_degraded_link_shows_at_both_ends_and_a_lost_ordering_at_its_device(tmp_path: Path) -> None:
    patch = {"devices": {"0f:00.0": {"now": "16.0x8"}, "0c:00.0": {"relaxed_ordering": False}}}
    build(EIGHT, tmp_path / "t", patch)
    seen = blocks(lspci(tmp_path / "t", "-Dnvvv"))
    assert "RlxdOrd-" in seen["0000:0c:00.0"]
    assert "RlxdOrd+" in seen["0000:0f:00.0"]
    for address in ("0000:0e:00.0", "0000:0f:00.0"):
        assert found(r"LnkSta:\s+Speed (\S+GT/s)", seen[address]) == "16GT/s"
        assert found(r"LnkSta:.*Width (x\d+)", seen[address]) == "x8"
        folder = tmp_path / "t/sys/bus/pci/devices" / address
        assert (folder / "current_link_speed").read_text() == "16.0 GT/s PCIe\n"
        assert (folder / "current_link_width").read_text() == "8\n"
        assert (folder / "max_link_speed").read_text() == "32.0 GT/s PCIe\n"


def test_a_device_may_claim_another_node_than_its_root_bus(tmp_path: Path) -> None:
    build(EIGHT, tmp_path / "t", {"devices": {"0c:00.0": {"numa": 1}}})
    seen = blocks(lspci(tmp_path / "t", "-Dnvvv"))
    assert found(r"NUMA node: (\d+)", seen["0000:0c:00.0"]) == "1"
    assert found(r"NUMA node: (\d+)", seen["0000:0f:00.0"]) == "0"
    folder = tmp_path / "t/sys/bus/pci/devices/0000:0c:00.0"
    assert (folder / "local_cpulist").read_text() == "56-111,168-223\n"


def test_a_link_runs_at_what_its_slower_end_can_do(built: Callable[[str], Path]) -> None:
    # A Gen4 x2 NVSwitch, a 1 Gb/s NIC of 5.0 GT/s x2 in an 8.0 GT/s x4 port, a GPU in a guest's 16.0 GT/s port.
    for name, address, link in (
        ("2s_8xh100_10xcx7", "e3:00.0", ("16.0 GT/s PCIe", "2")),
        ("2s_4xh100pcie_2xcx6", "00:1c.0", ("5.0 GT/s PCIe", "2")),
        ("1s_8xh200_8xcx7_vm", "05:00.0", ("16.0 GT/s PCIe", "16")),
        ("1s_8xh200_8xcx7_vm", "00:01.4", ("16.0 GT/s PCIe", "16")),
    ):
        folder = built(name) / "sys/bus/pci/devices" / f"0000:{address}"
        speed, width = ((folder / f"current_link_{what}").read_text().strip() for what in ("speed", "width"))
        assert (speed, width) == link


def test_lspci_reads_the_tree_in_the_place_of_sys(built: Callable[[str], Path]) -> None:
    need("lspci", "unshare")
    tree = built("2s_8xh200_8xcx7_snc2")
    enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    script = 'mount --rbind "$0/sys" /sys && lspci -Dnvv'
    done = subprocess.run(
        [*enter, "sh", "-c", script, str(tree)], check=False, capture_output=True, text=True
    )
    if done.returncode and "unshare" in done.stderr:
        pytest.skip("mount namespaces are not allowed here")
    assert done.returncode == 0, done.stderr
    # `-O sysfs.path` reads the slots of the tree too, so the two ways differ in nothing.
    assert done.stdout == lspci(tree, "-Dnvv")


# ----- hwloc --------------------------------------------------------------------------------------------------------


def hwloc(root: Path) -> ElementTree.Element:
    need("lstopo-no-graphics")
    command = ["lstopo-no-graphics", "--input", str(root), "--if", "fsroot", "--whole-io", "--of", "xml", "-"]
    environment = {**os.environ, "HWLOC_HIDE_ERRORS": "2"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return ElementTree.fromstring(done.stdout)  # noqa: S314 - the output of hwloc


# name: packages, NUMA nodes with their CPUs, cores, what shares a core with CPU 0, L3 caches
SHAPES: dict[str, tuple[int, list[str], int, str, int]] = {
    "1s_8xh200_8xcx7_vm": (1, ["0-127"], 64, "0-1", 1),
    "2s_4xh100pcie_2xcx6": (2, [",".join(str(cpu) for cpu in range(start, 128, 2)) for start in (0, 1)], 64, "0,64", 2),
    "2s_7xh100_10xcx7": (2, ["0-55,112-167", "56-111,168-223"], 112, "0,112", 2),
    "2s_8xh100_10xcx7": (2, ["0-55,112-167", "56-111,168-223"], 112, "0,112", 2),
    "2s_8xh100_10xcx7_backwards": (2, ["0-55,112-167", "56-111,168-223"], 112, "0,112", 2),
    "2s_8xh200_8xcx7_snc2": (2, ["0-23,96-119", "24-47,120-143", "48-71,144-167", "72-95,168-191"], 96, "0,96", 2),
}  # fmt: skip


def cpus_of(element: ElementTree.Element) -> str:
    """hwloc writes 32-bit words and leaves out the digits of those that are zero."""
    words = [int(word or "0", 16) for word in element.get("cpuset", "").split(",")]
    bits = sum(word << 32 * index for index, word in enumerate(reversed(words)))
    return format_list(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


@pytest.mark.parametrize("name", NAMES)
def test_hwloc_sees_sockets_nodes_cores_and_siblings(name: str, built: Callable[[str], Path]) -> None:
    packages, nodes, cores, first, caches = SHAPES[name]
    objects = list(hwloc(built(name)).iter("object"))
    by_type: dict[str, list[ElementTree.Element]] = {}
    for element in objects:
        by_type.setdefault(element.get("type", ""), []).append(element)
    assert len(by_type["Package"]) == packages
    assert [cpus_of(element) for element in by_type["NUMANode"]] == nodes
    assert len(by_type["Core"]) == cores
    assert first in {cpus_of(element) for element in by_type["Core"]}
    assert len(by_type["L3Cache"]) == caches
    machine = load(MACHINES / name)
    assert [int(element.get("local_memory", "0")) >> 30 for element in by_type["NUMANode"]] == [
        machine.memory_gib[node] for node in sorted(machine.memory_gib)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_hwloc_puts_each_device_beside_its_node(name: str, built: Callable[[str], Path]) -> None:
    machine = load(MACHINES / name)
    nodes = SHAPES[name][1]
    places: dict[str, str] = {}
    names: dict[str, set[str]] = {}

    def walk(element: ElementTree.Element, cpus: str, device: str) -> None:
        if element.get("cpuset"):
            cpus = cpus_of(element)
        if element.get("type") == "PCIDev":
            device = element.get("pci_busid", "")
            places[device] = cpus
        if element.get("type") == "OSDev":
            names.setdefault(device, set()).add(element.get("name", ""))
        for child in element.findall("object"):
            walk(child, cpus, device)

    walk(hwloc(built(name)), "", "")
    whole = format_list(cpu for node in nodes for cpu in parse_list(node, name))
    for device in machine.devices:
        if device.part.port in ("endpoint", "conventional") and device.part.class_code >> 16 != 6:
            node = machine.hosts[device.host]
            assert places[str(device.address)] == (whole if node < 0 else nodes[node]), device.address
    for nic in machine.nics:
        if nic.via is None:
            assert {nic.rdma, nic.netdev} - {None} <= names[str(nic.at)]


# ----- published relations ------------------------------------------------------------------------------------------


def chain(tree: Path, address: str) -> list[str]:
    """The real folder of a PCI function, from the host bridge down."""
    parts = (tree / "sys/bus/pci/devices" / address).resolve().parts
    return list(parts[parts.index("devices") + 1 :])


def level(tree: Path, one: str, other: str) -> str:
    """PIX, PXB, PHB, NODE or SYS, as nvidia-smi defines them."""
    a, b = chain(tree, one), chain(tree, other)
    if a[0] != b[0]:
        nodes = {
            (tree / "sys/bus/pci/devices" / address / "numa_node").read_text() for address in (one, other)
        }
        return "NODE" if len(nodes) == 1 else "SYS"
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    if shared == 1:
        return "PHB"
    # One bridge: a switch of one level, whose upstream port is the last common bridge, or two functions of one card.
    own = max(len(a), len(b)) - shared
    return "PIX" if own <= 2 else "PXB"


def matrix(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Headers and rows of `nvidia-smi topo -m`."""
    rows = [line.split("\t") for line in path.read_text().splitlines() if "\t" in line]
    return rows[0][1:], {row[0]: [cell.strip() for cell in row[1:]] for row in rows[1:]}


def gpus_of(machine: Machine) -> list[str]:
    return [str(device.address) for device in machine.devices if device.part.class_code >> 8 == 0x0302]


def nics_of(machine: Machine) -> list[str]:
    named = {int((nic.rdma or "").removeprefix("mlx5_")): str(nic.at) for nic in machine.nics if nic.rdma}
    return [named[index] for index in sorted(named)]


def test_the_ten_nic_machine_has_the_relations_of_the_published_matrix(built: Callable[[str], Path]) -> None:
    headers, rows = matrix(captures() / "smi_topo/h100-10nic-1264.txt")
    tree = built("2s_8xh100_10xcx7")
    machine = load(EIGHT)
    gpus, nics = gpus_of(machine), nics_of(machine)
    for g, gpu in enumerate(gpus):
        for n, nic in enumerate(nics):
            word = rows[f"GPU{g}"][headers.index(f"NIC{n}")]
            # The matrix knows PIX and SYS only, and counts the two levels of one switch as one bridge.
            ours = {"PXB": "PIX", "NODE": "SYS"}.get(level(tree, gpu, nic), level(tree, gpu, nic))
            assert ours == word, (g, n)
        folder = tree / "sys/bus/pci/devices" / gpu
        assert (folder / "local_cpulist").read_text().strip() == rows[f"GPU{g}"][
            headers.index("CPU Affinity")
        ]
        assert (folder / "numa_node").read_text().strip() == rows[f"GPU{g}"][headers.index("NUMA Affinity")]


def test_the_pcie_machine_has_the_relations_of_the_published_matrix(built: Callable[[str], Path]) -> None:
    headers, rows = matrix(captures() / "smi_topo/4gpu-2dualport-nic-node.txt")
    tree = built("2s_4xh100pcie_2xcx6")
    machine = load(MACHINES / "2s_4xh100pcie_2xcx6")
    devices = {f"GPU{index}": address for index, address in enumerate(gpus_of(machine))}
    devices.update({f"NIC{index}": address for index, address in enumerate(nics_of(machine))})
    assert set(devices) == set(rows)
    for one, a in devices.items():
        for other, b in devices.items():
            if one != other:
                assert level(tree, a, b) == rows[one][headers.index(other)], (one, other)


def test_the_guest_shows_every_pair_at_the_root_complex(built: Callable[[str], Path]) -> None:
    machine = load(MACHINES / "1s_8xh200_8xcx7_vm")
    tree = built("1s_8xh200_8xcx7_vm")
    assert {level(tree, gpu, nic) for gpu in gpus_of(machine) for nic in nics_of(machine)} == {"PHB"}
    assert len(gpus_of(machine)) == len(nics_of(machine)) == 8
    assert " hypervisor " in (tree / "proc/cpuinfo").read_text()
    assert (tree / "sys/class/dmi/id/sys_vendor").read_text() == "QEMU\n"


def test_the_guest_has_the_root_ports_of_the_published_tree(built: Callable[[str], Path]) -> None:
    text = (captures() / "lspci/h200-kvm-flat-tree.txt").read_text()
    published = dict(re.findall(r"\+-(0[0-9a-f]\.[0-7])-\[([0-9a-f]{2})\]----00\.0", text))
    assert len(published) == 7
    tree = lspci(built("1s_8xh200_8xcx7_vm"), "-t")
    ours = dict(re.findall(r"-(0[0-9a-f]\.[0-7])-\[([0-9a-f]{2})\]----00\.0", tree))
    assert published.items() <= ours.items()


# ----- NCCL topology files ------------------------------------------------------------------------------------------


def nccl_view(tree: Path, wanted: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What NCCL reads of a tree for the devices `wanted`: each and every bridge it meets, climbing two levels a time.

    Link values are the minimum of a function and the port above it, as in NCCL 2.30.7 src/graph/xml.cc:681-716.
    """
    view: dict[str, dict[str, Any]] = {}
    for address in wanted:
        below = address
        while True:
            folder = (tree / "sys/bus/pci/devices" / below).resolve()
            bridge = folder.parent
            speeds, widths = [], []
            for place in (folder, bridge):
                if (place / "max_link_speed").exists():
                    speeds.append((place / "max_link_speed").read_text().split()[0])
                    widths.append(int((place / "max_link_width").read_text()))
            above = bridge.parent.name
            is_device = re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", above)
            view[below] = {
                "class": (folder / "class").read_text().strip(),
                "ids": tuple(
                    (folder / name).read_text().strip()
                    for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
                ),
                "speed": min(speeds, key=lambda text: float(text) if text != "Unknown" else 0),
                "width": min(widths),
                "above": above if is_device else f"node {(folder / 'numa_node').read_text().strip()}",
            }
            if not is_device:
                break
            below = above
    return view


def xml_view(path: Path) -> dict[str, dict[str, Any]]:
    """The same, as the file says."""
    view: dict[str, dict[str, Any]] = {}

    def walk(element: ElementTree.Element, above: str) -> None:
        for child in element.findall("pci"):
            speed = child.get("link_speed", "").split()[:1]
            view[child.get("busid", "")] = {
                "class": child.get("class"),
                "ids": tuple(
                    child.get(name, "0x0000")
                    for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
                ),
                "speed": (speed or ["Unknown"])[0],
                "width": int(child.get("link_width") or 255),
                "above": above,
            }
            walk(child, child.get("busid", ""))

    for cpu in ElementTree.parse(path).getroot().findall("cpu"):  # noqa: S314 - a capture
        walk(cpu, f"node {cpu.get('numaid')}")
    return view


def plain(view: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for entry in view.values():
        if entry["speed"] != "Unknown":
            entry["speed"] = float(entry["speed"])
    return view


@pytest.mark.parametrize(
    "name",
    ["oci-bm-h100-8.xml", "smc-h200-sub-numa-3of8.xml", "lab-2x4090-1xcx4-dual.xml", "rocm-topo_8p_940.xml"],
)
def test_the_tree_of_an_nccl_file_reads_back_as_that_file(name: str, tmp_path: Path) -> None:
    path = captures() / "nccl_xml" / name
    build_from_nccl_xml(path, tmp_path / "t")
    expected = plain(xml_view(path))
    leaves = [address for address, entry in expected.items() if not entry["class"].startswith("0x0604")]
    assert plain(nccl_view(tmp_path / "t", leaves)) == expected
    system = ElementTree.parse(path).getroot()  # noqa: S314 - a capture
    for cpu in system.findall("cpu"):
        node = tmp_path / "t/sys/devices/system/node" / f"node{cpu.get('numaid')}"
        mask = (node / "cpumap").read_text().strip()
        assert int(mask.replace(",", ""), 16) == int(cpu.get("affinity", "").replace(",", ""), 16)
    for pci in system.iter("pci"):
        for net in pci.iter("net") if pci.find("nic") is not None else ():
            device = tmp_path / "t/sys/class/infiniband" / str(net.get("name"))
            address = (device / "device").resolve().name
            assert address == f"{str(pci.get('busid'))[:-1]}{int(net.get('port', '1')) - 1}"
            assert (device / "ports/1/rate").read_text().split()[0] == str(int(net.get("speed", "0")) // 1000)
            guid = (device / "sys_image_guid").read_text().strip().replace(":", "")
            assert int(guid, 16) == int(net.get("guid", "0"), 16)


def test_siblings_are_taken_from_masks_of_two_equal_runs_only(tmp_path: Path) -> None:
    folder = captures() / "nccl_xml"
    build_from_nccl_xml(folder / "smc-h200-sub-numa-3of8.xml", tmp_path / "two")
    build_from_nccl_xml(folder / "oci-bm-h100-8.xml", tmp_path / "one")
    for name, listed in (("two", "0,96"), ("one", "0,112")):
        text = (tmp_path / name / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text()
        assert text == listed + "\n"
    assert (tmp_path / "two/sys/devices/system/cpu/online").read_text() == "0-23,96-119\n"


def test_every_published_nccl_file_is_built_or_refused_with_a_reason() -> None:
    from tests.machinery.nccl_xml import machine_of_nccl_xml

    refused = {}
    for path in sorted((captures() / "nccl_xml").glob("*.xml")):
        try:
            tree_of(machine_of_nccl_xml(path))
        except MachineError as error:
            refused[path.name] = str(error)
    # Skeletons for virtual machines: devices of one domain below invented bridges of another, or no CPUs.
    assert set(refused) == {
        "aws-g5.48xl-topo.xml",
        "aws-p4d-24xl-topo.xml",
        "azure-ndv4-topo.xml",
        "azure-ndv5-topo.xml",
        "ibm-a100-8x2nic-vm.xml",
        "superbench-ndv4-topo.xml",
        "superbench-ndv5-topo.xml",
    }
    assert all("another PCI domain" in why or "no CPU mask" in why for why in refused.values())


def test_the_first_node_of_the_h200_machine_is_the_published_one(built: Callable[[str], Path]) -> None:
    expected = plain(xml_view(captures() / "nccl_xml/smc-h200-sub-numa-3of8.xml"))
    tree = built("2s_8xh200_8xcx7_snc2")
    leaves = [address for address, entry in expected.items() if not entry["class"].startswith("0x0604")]
    assert plain(nccl_view(tree, leaves)) == expected
    assert (tree / "sys/devices/system/node/node0/cpumap").read_text().strip() == (
        "00000000,00000000,00ffffff,00000000,00000000,00ffffff"
    )


def test_gpus_rails_and_switches_of_the_h100_machine_are_the_published_ones(
    built: Callable[[str], Path],
) -> None:
    expected = plain(xml_view(captures() / "nccl_xml/oci-bm-h100-8.xml"))
    leaves = [address for address, entry in expected.items() if not entry["class"].startswith("0x0604")]
    ours = plain(nccl_view(built("2s_8xh100_10xcx7"), leaves))
    # The published rails are dual-port cards; this machine has one port a rail.
    for view in (expected, ours):
        for entry in view.values():
            if entry["class"] == "0x020000":
                entry["ids"] = entry["ids"][:2]
    assert ours == expected


# ----- formats of the kernel ----------------------------------------------------------------------------------------


def test_masks_and_lists_are_spelt_as_the_kernel_spells_them() -> None:
    # Texts of real machines: irqbalance#169 (104 CPUs), a 40-CPU sysfs, the topology file of an OCI H100 (224 CPUs).
    cpus = parse_list("26-51,78-103", "test")
    assert format_mask(cpus, 104) == "ff,ffffc000,000fffff,fc000000"
    assert format_mask(range(40), 80) == "0000,000000ff,ffffffff"
    assert format_mask(parse_list("0-55,112-167", "test"), 224) == (
        "00000000,000000ff,ffffffff,ffff0000,00000000,00ffffff,ffffffff"
    )
    assert parse_mask("ff,ffffc000,000fffff,fc000000", "test") == cpus
    assert format_list(cpus) == "26-51,78-103"
    assert format_list(()) == ""
    assert format_list((0, 2, 3, 9)) == "0,2-3,9"


def kernels_networks(machine: Machine, folder: Path) -> dict[str, str]:
    """/proc/net of a live kernel that was given the machine's interfaces, addresses and default route."""
    need("ip", "unshare")
    lines = ["set -e", "ip link set lo up"]
    for number, nic in enumerate(nic for nic in machine.nics if nic.ipv4 and nic.state == "ACTIVE"):
        lines.append(f"ip link add {nic.netdev} address {nic.mac} type veth peer name peer{number}")
        lines += [f"ip link set {nic.netdev} up", f"ip link set peer{number} up"]
        for own in nic.ipv4:
            broadcast = "broadcast +" if own.network.prefixlen < 31 else ""
            lines.append(f"ip addr add {own} {broadcast} dev {nic.netdev}")
        if nic.label == machine.default_nic:
            route = f"ip route add default via {machine.default_gateway} dev {nic.netdev}"
            lines.append(f"{route} metric {machine.default_metric}")
    names = ("route", "fib_trie")
    lines += [f"cat /proc/net/{name} > {folder}/{name}" for name in names]
    enter = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    done = subprocess.run([*enter, "sh", "-c", "\n".join(lines)], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network namespace with veth here: {done.stderr.strip()}")
    return {name: (folder / name).read_text() for name in names}


def trie_leaves(text: str) -> list[str]:
    """`address /length scope type` of each leaf, in the order of the file, without the inner nodes."""
    leaves, address = [], ""
    for line in text.splitlines():
        words = line.split()
        if words[0] == "|--":
            address = words[1]
        elif words[0].startswith("/"):
            leaves.append(f"{address} {line.strip()}")
        elif words[0] != "+--":
            leaves.append(line)
    return leaves


@pytest.mark.parametrize("name", NAMES)
def test_a_live_kernel_writes_the_same_routes_and_addresses(
    name: str, tmp_path: Path, built: Callable[[str], Path]
) -> None:
    live = kernels_networks(load(MACHINES / name), tmp_path)
    ours = {key: (built(name) / "proc/net" / key).read_text() for key in live}
    assert ours["route"] == live["route"]
    assert trie_leaves(ours["fib_trie"]) == trie_leaves(live["fib_trie"])
    syntax = re.compile(r"Main:|Local:|(?:   )*(?:  \+-- \S+/\d+ \d+ \d+ \d+|  \|-- \S+|     /\d+ \w+ \w+)")
    for text in (ours["fib_trie"], live["fib_trie"]):
        assert all(syntax.fullmatch(line) for line in text.splitlines())


def test_gids_are_laid_out_as_show_gids_lists_them(tmp_path: Path) -> None:
    text = (captures() / "misc/show_gids-roce-4port.txt").read_text()
    published = {}
    for line in text.splitlines():
        match = re.match(r"mlx5_0\s+1\s+(\d+)\s+(\S+)\s.*?v([12])", line)
        if match:
            published[match[1]] = (match[2], "RoCE v2" if match[3] == "2" else "IB/RoCE v1")
    patch = {"nics": {"gpu0": {"mac": "02:00:00:00:00:01", "ipv4": ["10.0.0.36/24"]}}}
    build(EIGHT, tmp_path / "t", patch)
    port = tmp_path / "t/sys/class/infiniband/mlx5_0/ports/1"
    kinds = {path.name: path.read_text().strip() for path in (port / "gid_attrs/types").iterdir()}
    assert sorted(kinds) == ["0", "1", "2", "3"]
    ours = {index: ((port / "gids" / index).read_text().strip(), kind) for index, kind in kinds.items()}
    # Addresses of the capture are neutral, its link-local ones made up; the IPv4 ones and all types are to match.
    assert {index: kind for index, (_, kind) in ours.items()} == {
        index: kind for index, (_, kind) in published.items()
    }
    assert [ours[index][0] for index in "23"] == [published[index][0] for index in "23"]
    assert {path.read_text().strip() for path in (port / "gid_attrs/ndevs").iterdir()} == {"enp12s0np0"}
    assert (port / "gids/15").read_text() == "0000:0000:0000:0000:0000:0000:0000:0000\n"


def test_the_link_local_address_is_the_one_a_live_kernel_makes(built: Callable[[str], Path]) -> None:
    # ip -6 addr of a machine with the MAC 02:fc:00:00:00:01 says fe80::fc:ff:fe00:1.
    from tests.machinery.nics import link_local

    assert str(link_local("02:fc:00:00:00:01")) == "fe80::fc:ff:fe00:1"


def test_a_port_that_is_down_says_so_everywhere(tmp_path: Path) -> None:
    build(EIGHT, tmp_path / "t", {"nics": {"gpu4": {"state": "DOWN", "physical": "Polling"}}})
    port = tmp_path / "t/sys/class/infiniband/mlx5_6/ports/1"
    net = tmp_path / "t/sys/class/net/enp134s0np0"
    assert (port / "state").read_text() == "1: DOWN\n"
    assert (port / "phys_state").read_text() == "2: Polling\n"
    assert sorted(path.name for path in (port / "gid_attrs/types").iterdir()) == ["0", "1"]
    assert [(net / name).read_text().strip() for name in ("operstate", "carrier", "speed")] == [
        "down",
        "0",
        "-1",
    ]
    assert "10.100.4.1" not in (tmp_path / "t/proc/net/fib_trie").read_text()


def test_infiniband_ports_look_like_infiniband(built: Callable[[str], Path]) -> None:
    port = built("2s_4xh100pcie_2xcx6") / "sys/class/infiniband/mlx5_1/ports/1"
    assert (port / "link_layer").read_text() == "InfiniBand\n"
    assert (port / "rate").read_text() == "200 Gb/sec (4X HDR)\n"
    assert (port / "lid").read_text() == "0x12\n"
    assert (port / "gids/0").read_text() == "fe80:0000:0000:0000:0c42:a103:0000:0031\n"
    assert (port / "pkeys/0").read_text() == "0xffff\n"
    assert not (port / "gid_attrs/ndevs").exists()
    device = port.parents[1]
    assert (device / "node_guid").read_text() == "0c42:a103:0000:0031\n"
    assert (device / "sys_image_guid").read_text() == "0c42:a103:0000:0030\n"


# ----- interrupts ---------------------------------------------------------------------------------------------------


def table(tree: Path) -> tuple[list[int], dict[int, tuple[list[int], str]]]:
    """CPUs of the header and, by number, (counts, the rest of the line) of /proc/interrupts."""
    lines = (tree / "proc/interrupts").read_text().splitlines()
    cpus = [int(word.removeprefix("CPU")) for word in lines[0].split()]
    rows = {}
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        if name.strip().isdigit():
            words = rest.split(None, len(cpus))
            rows[int(name)] = ([int(word) for word in words[: len(cpus)]], words[len(cpus)])
    return cpus, rows


@pytest.mark.parametrize("name", NAMES)
def test_interrupts_agree_between_their_four_places(name: str, built: Callable[[str], Path]) -> None:
    tree = built(name)
    cpus, rows = table(tree)
    assert cpus == list(parse_list((tree / "sys/devices/system/cpu/online").read_text().strip(), name))
    owned: dict[int, str] = {}
    for folder in (tree / "sys/bus/pci/devices").iterdir():
        for path in (folder / "msi_irqs").iterdir() if (folder / "msi_irqs").exists() else ():
            assert path.read_text() in ("msi\n", "msix\n")
            owned[int(path.name)] = folder.name
    assert set(owned) == set(rows) - {0, 8, 9}
    for number, (counts, rest) in rows.items():
        folder = tree / "proc/irq" / str(number)
        effective = parse_list((folder / "effective_affinity_list").read_text().strip(), name)
        allowed = parse_list((folder / "smp_affinity_list").read_text().strip(), name)
        assert set(effective) <= set(allowed)
        assert parse_mask((folder / "smp_affinity").read_text(), name) == allowed
        fired = [cpu for cpu, count in zip(cpus, counts, strict=True) if count]
        assert fired in ([], list(effective))
        for action in rest.split("  ")[-1].strip().split(", "):
            assert (folder / action).is_dir()
        if "mlx5_" in rest:
            assert rest.endswith(f"@pci:{owned[number]}")


def test_interrupt_lines_have_the_columns_of_the_kernel(tmp_path: Path) -> None:
    # Linux 5.15, a machine of two CPUs: 24 for 0000:18:00.0 is (0x18 << 8) << 11 + 0 (pci_msi_domain_calc_hwirq).
    patch = {
        "cpus": {"sockets": 1, "cores": 2, "threads": 1},
        "memory_gib": {"1": None, 1: None},
        "numa_distance": {0: "10", 1: None},
    }
    machine = load(
        EIGHT, patch, {"hosts": {bus: {"numa": 0} for bus in load(EIGHT).hosts}}, {"nics": no_irq_cpus()}
    )
    text = tree_of(machine).files["proc/interrupts"].decode()
    lines = text.splitlines()
    assert lines[0] == "            CPU0       CPU1       "
    number = next(
        line.split(":")[0].strip() for line in lines if line.endswith("mlx5_comp0@pci:0000:0c:00.0")
    )
    expected = f"{number:>4}:       1007          0  IR-PCI-MSI 6291457-edge      mlx5_comp0@pci:0000:0c:00.0"
    assert expected in lines
    newer = tree_of(load(EIGHT, {"irqs": {"chip": "per-device"}})).files["proc/interrupts"].decode()
    assert re.search(
        r" IR-PCI-MSIX-0000:0c:00\.0    1-edge      mlx5_comp0@pci:0000:0c:00\.0$", newer, re.MULTILINE
    )


def no_irq_cpus() -> dict[str, dict[str, None]]:
    return {nic.label: {"irq_cpus": None} for nic in load(EIGHT).nics}


def test_rail_vectors_of_the_untuned_machine_fire_on_cpu_0(built: Callable[[str], Path]) -> None:
    tree = built("2s_8xh100_10xcx7_backwards")
    fires = fired(tree)
    comps = Counter(fires[number] for number, (_, rest) in table(tree)[1].items() if "mlx5_comp" in rest)
    assert comps == {"0": 8 * 16, "1": 32, "2": 32}


@pytest.mark.parametrize("name", NAMES)
def test_no_cpu_serves_more_vectors_than_an_x86_cpu_has(name: str, built: Callable[[str], Path]) -> None:
    # 256, less 32 exceptions and about 20 of the system's own.
    assert max(Counter(fired(built(name)).values()).values()) <= 202


def fired(tree: Path) -> dict[int, str]:
    """By interrupt, the CPU it fires on."""
    return {
        int(folder.name): (folder / "effective_affinity_list").read_text().strip()
        for folder in (tree / "proc/irq").iterdir()
        if folder.is_dir()
    }


def test_rail_vectors_of_the_clean_machine_stay_on_their_own_node(built: Callable[[str], Path]) -> None:
    tree = built("2s_8xh100_10xcx7")
    _, rows = table(tree)
    for number, (_, rest) in rows.items():
        if "mlx5_comp" in rest:
            address = rest.rpartition("@pci:")[2]
            local = (tree / "sys/bus/pci/devices" / address / "local_cpulist").read_text()
            effective = (tree / f"proc/irq/{number}/effective_affinity_list").read_text()
            assert set(parse_list(effective.strip(), "")) <= set(parse_list(local.strip(), ""))


def test_offline_cpus_have_no_topology_and_no_column(tmp_path: Path) -> None:
    build(
        EIGHT, tmp_path / "t", {"cpus": {"offline": "54-55,166-167"}, "nics": {"gpu3": {"irq_cpus": "52-53"}}}
    )
    cpu = tmp_path / "t/sys/devices/system/cpu"
    assert (cpu / "online").read_text() == "0-53,56-165,168-223\n"
    assert (cpu / "offline").read_text() == "54-55,166-167\n"
    assert not (cpu / "cpu54/topology").exists()
    assert (cpu / "cpu54/online").read_text() == "0\n"
    assert 54 not in table(tmp_path / "t")[0]
    assert (tmp_path / "t/sys/devices/system/node/node0/cpulist").read_text() == "0-53,112-165\n"


# ----- IOMMU groups -------------------------------------------------------------------------------------------------


def groups_of(*patches: object) -> dict[str, int]:
    return {str(address): group for address, group in iommu_groups(functions(load(EIGHT, *patches))).items()}


def test_without_acs_all_below_a_root_port_is_one_group() -> None:
    groups = groups_of()
    below = [address for address in groups if address.split(":")[1] in ("07", "08", "09", "0a", "0c", "0f")]
    assert len({groups[address] for address in below}) == 1
    assert groups["0000:0f:00.0"] != groups["0000:2d:00.0"]


def test_with_acs_all_the_way_up_each_function_is_its_own_group() -> None:
    words = ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
    ports = [str(d.address) for d in load(EIGHT).devices if d.part.port in ("root-port", "downstream")]
    groups = groups_of({"devices": {address: {"acs": words} for address in ports}})
    rail = [address for address in groups if "07" <= address.split(":")[1] <= "0f"]
    assert len(rail) == 10
    assert len({groups[address] for address in rail}) == 10
    # Two functions of one card shield nothing from each other.
    assert groups["0000:4b:00.0"] == groups["0000:4b:00.1"]


def test_acs_on_one_port_alone_isolates_nothing() -> None:
    words = ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
    groups = groups_of({"devices": {"0b:00.0": {"acs": words}}})
    assert groups["0000:0c:00.0"] == groups["0000:0f:00.0"]


def test_the_iommu_mode_is_shown_on_each_group(built: Callable[[str], Path]) -> None:
    for name, mode in (("2s_8xh100_10xcx7", "identity"), ("2s_8xh100_10xcx7_backwards", "DMA-FQ")):
        kinds = {path.read_text() for path in (built(name) / "sys/kernel/iommu_groups").glob("*/type")}
        assert kinds == {mode + "\n"}
    assert not (built("2s_4xh100pcie_2xcx6") / "sys/kernel/iommu_groups").exists()


# ----- the machine as a whole ---------------------------------------------------------------------------------------


def test_the_drivers_own_files_are_there_where_it_is_loaded(built: Callable[[str], Path]) -> None:
    tree = built("2s_8xh200_8xcx7_snc2")
    assert (tree / "proc/driver/nvidia/version").read_text() == (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  "
        "(dvs-builder@U22-I3-AF07-07-5)  Thu Jan 23 22:50:36 UTC 2025\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
    )
    information = (tree / "proc/driver/nvidia/gpus/0000:2a:00.0/information").read_text()
    assert "Model: \t\t NVIDIA H200\n" in information
    assert "GPU UUID: \t GPU-7b0e3c52-0001-4a6d-9c11-5d0a5e000001\n" in information
    assert "Device Minor: \t 1\n" in information
    assert len(list((tree / "proc/driver/nvidia/gpus").iterdir())) == 8
    assert re.search(r"^nvidia 11563008 12 nvidia_uvm, Live 0x0000000000000000 \(OE\)$",
                     (tree / "proc/modules").read_text(), re.MULTILINE)  # fmt: skip
    assert (tree / "sys/module/nvidia/version").read_text() == "570.86.15\n"
    assert (tree / "sys/bus/pci/devices/0000:2a:00.0/driver").resolve().name == "nvidia"


def test_no_gpu_has_a_driver_where_none_is_loaded(built: Callable[[str], Path]) -> None:
    tree = built("2s_8xh100_10xcx7")
    assert not (tree / "proc/driver").exists()
    assert not (tree / "sys/bus/pci/devices/0000:0f:00.0/driver").exists()
    assert (tree / "sys/bus/pci/devices/0000:0c:00.0/driver").resolve().name == "mlx5_core"


def test_secure_boot_is_the_last_byte_of_its_variable(built: Callable[[str], Path]) -> None:
    variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    assert (built("2s_8xh200_8xcx7_snc2") / variable).read_bytes() == bytes((6, 0, 0, 0, 1))
    assert (built("2s_8xh100_10xcx7") / variable).read_bytes() == bytes((6, 0, 0, 0, 0))


def test_sysctls_command_line_and_boot_are_told(built: Callable[[str], Path]) -> None:
    tree = built("2s_8xh100_10xcx7_backwards")
    assert (tree / "proc/sys/kernel/numa_balancing").read_text() == "1\n"
    assert (built("2s_8xh100_10xcx7") / "proc/sys/kernel/numa_balancing").read_text() == "0\n"
    assert (tree / "proc/sys/net/ipv4/conf/eth0/rp_filter").read_text() == "0\n"
    assert (tree / "proc/sys/kernel/random/boot_id").read_text() == "0f6c1f6e-6c3f-4a57-9a3d-0d7b8a1c0002\n"
    assert "iommu=pt" not in (tree / "proc/cmdline").read_text()
    assert 'VERSION_ID="22.04"\n' in (tree / "etc/os-release").read_text()


def test_a_virtio_port_reaches_pci_over_its_bus(built: Callable[[str], Path]) -> None:
    net = built("1s_8xh200_8xcx7_vm") / "sys/class/net/enp1s0"
    assert (net / "device").resolve().name == "virtio0"
    assert (net / "device").resolve().parent.name == "0000:01:00.0"


@pytest.mark.parametrize("name", NAMES)
def test_no_link_of_a_tree_dangles(name: str, built: Callable[[str], Path]) -> None:
    tree = built(name)
    dangling = [
        str(path.relative_to(tree))
        for folder, folders, files in os.walk(tree)
        for path in (Path(folder, entry) for entry in (*folders, *files))
        if path.is_symlink() and not path.exists()
    ]
    # What a `subsystem` link points at has members, and no description names those of every bus.
    assert [path for path in dangling if not path.endswith("/subsystem")] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_tells_sockets_and_gpus_and_a_page_tells_its_source(name: str) -> None:
    machine = load(MACHINES / name)
    sockets, gpus = re.match(r"(\d)s_(\d)x", name).groups()  # type: ignore[union-attr]
    assert int(sockets) == machine.cpus.sockets
    assert int(gpus) == len(gpus_of(machine))
    assert len(machine.about) > 100
    assert machine.source


# ----- variants -----------------------------------------------------------------------------------------------------


def test_the_empty_slot_is_all_that_differs_from_the_full_machine() -> None:
    full, gone = tree_of(load(EIGHT)), tree_of(load(MACHINES / "2s_7xh100_10xcx7"))
    gpu = "sys/devices/pci0000:a0/0000:a0:01.0/0000:a1:00.0/0000:a2:01.0/0000:a6:00.0/0000:a7:00.0/0000:a8:00.0/"
    assert {path for path in full.files if path.startswith(gpu)}
    assert not {path for path in gone.files if "0000:a8:00.0" in path}
    changed = {path for path in full.files.keys() & gone.files if full.files[path] != gone.files[path]}
    port = gpu.rsplit("/", 2)[0] + "/"
    allowed = re.compile(
        r"(?:.*/0000:a7:00\.0/[a-z_]+|.*/0000:(?:a0:01\.0|a1:00\.0|a2:01\.0|a6:00\.0)/(?:config|resource)|"
        r"sys/bus/pci/slots/26/.*|sys/devices/pci0000:(?:b8|d0)/.*/(?:config|resource)|sys/devices/pci0000:a0/.*|"
        r"proc/sys/kernel/.*|etc/hostname|.*/node_desc|sys/devices/virtual/dmi/id/product_serial)"
    )
    assert [path for path in changed if not allowed.fullmatch(path)] == []
    assert gone.files["sys/bus/pci/slots/26/adapter"] == b"0\n"
    assert gone.files[port + "current_link_width"] == b"0\n"


def test_lspci_sees_the_empty_slot(built: Callable[[str], Path]) -> None:
    block = blocks(lspci(built("2s_7xh100_10xcx7"), "-Dnvvv"))["0000:a7:00.0"]
    assert "Slot #26" in block
    assert found(r"SltSta:.*(PresDet.)", block) == "PresDet-"
    assert found(r"LnkSta:.*Width x(\d+)", block) == "0"
    assert "DLActive-" in block


def test_the_backwards_machine_is_the_same_board_with_other_names(built: Callable[[str], Path]) -> None:
    clean, backwards = load(EIGHT), load(MACHINES / "2s_8xh100_10xcx7_backwards")
    assert [device.address for device in clean.devices] == [device.address for device in backwards.devices]
    assert nics_of(backwards) == list(reversed(nics_of(clean)))
    assert {str(device.address) for device in backwards.devices if "ReqRedir" in device.acs} == {
        "0000:40:00.0",
        "0000:bc:00.0",
    }


def test_patches_apply_in_order_and_null_takes_out() -> None:
    machine = load(EIGHT, {"nics": {"gpu0": {"rdma": "mlx5_20"}}}, {"nics": {"gpu1": None}})
    for address in ("0c:00.0", "0000:0c:00.0"):
        patched = load(EIGHT, {"devices": {address: {"read_request": 256}}})
        assert patched.by_address[Address.parse(address, "test")].read_request == 256
    names = {nic.label: nic.rdma for nic in machine.nics}
    assert names["gpu0"] == "mlx5_20"
    assert "gpu1" not in names
    # The examples of RFC 7386, appendix A.
    for original, patch, result in (
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ):
        assert merge(original, patch) == result


@pytest.mark.parametrize("name", REJECTS)
def test_each_reject_can_be_built_and_says_what_its_refusal_must_name(name: str, tmp_path: Path) -> None:
    folder = MACHINES / "rejects" / name
    machine = build(folder, tmp_path / "t")
    phrases = (folder / "message.txt").read_text().splitlines()
    assert phrases
    assert all(phrase == phrase.strip() and phrase for phrase in phrases)
    assert machine.about
    policy = folder / "policy.json"
    if policy.exists():
        assert json.loads(policy.read_text())["schema"] == "railwright.policy/1"


def test_the_broken_trees_are_broken_as_they_claim(built: Callable[[str], Path]) -> None:
    pci = "sys/bus/pci/devices"
    assert not list((built("rejects/no_gpu") / pci).glob("0000:0f:*"))
    assert len((built("rejects/unreadable_config") / pci / "0000:0c:00.0/config").read_bytes()) == 20
    assert (built("rejects/garbled_link_width") / pci / "0000:0f:00.0/max_link_width").read_text() == "x1?\n"
    twice = built("rejects/two_nics_one_address") / "sys/class/infiniband"
    claimed = [(twice / name / "device").resolve().name for name in ("mlx5_0", "mlx5_1")]
    assert claimed == ["0000:2a:00.0", "0000:2a:00.0"]
    down = built("rejects/rail_down") / "sys/class/infiniband/mlx5_6/ports/1/state"
    assert down.read_text() == "1: DOWN\n"


# ----- the builder --------------------------------------------------------------------------------------------------


def digest(root: Path) -> str:
    sha = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = Path(folder, name)
            kind = os.readlink(path) if path.is_symlink() else "/" if path.is_dir() else path.read_bytes()
            sha.update(f"{path.relative_to(root)} {kind!r}\n".encode())
    return sha.hexdigest()


def test_the_same_description_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    digests = set()
    for seed in ("0", "1"):
        dest = tmp_path / seed
        subprocess.run(
            [sys.executable, "-m", "tests.machinery", "2s_4xh100pcie_2xcx6", str(dest)],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        digests.add(digest(dest))
    assert len(digests) == 1


def test_a_tree_on_disk_holds_what_the_tree_in_memory_holds(built: Callable[[str], Path]) -> None:
    name = "2s_4xh100pcie_2xcx6"
    tree, root = tree_of(load(MACHINES / name)), built(name)
    seen = {
        str(Path(folder, entry).relative_to(root))
        for folder, folders, files in os.walk(root)
        for entry in (*folders, *files)
        if Path(folder, entry).is_symlink() or entry in files
    }
    assert seen == tree.files.keys() | tree.links.keys()
    assert all((root / path).read_bytes() == content for path, content in tree.files.items())


def test_a_refused_description_leaves_nothing_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    patch = tmp_path / "patch.yml"
    patch.write_text('devices: {"0c:00.0": {part: no-such-part}}\n')
    command = [
        sys.executable,
        "-m",
        "tests.machinery",
        "2s_8xh100_10xcx7",
        str(tmp_path / "t"),
        "--patch",
        str(patch),
    ]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "devices.0000:0c:00.0.part: there is no part 'no-such-part'; add it to parts.yml" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patch.yml"]


def test_a_tree_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cmdline"):
        build(EIGHT, tmp_path / "t", {"files": {"proc/cmdline/below-a-file": "x"}})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/mine").write_text("keep")
    with pytest.raises(MachineError, match="already holds something"):
        build(EIGHT, tmp_path / "t")
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t"]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"colour": "red"}, "does not know colour"),
        ({"devices": {"0c:00.0": {"slott": 1}}}, "does not know slott"),
        ({"devices": {"0c:00.0": {"under": "99:00.0"}}}, "'99:00.0' is no host and no device"),
        ({"devices": {"0c:00.0": {"link": "33.0x16"}}}, "'33.0x16' is no link"),
        ({"devices": {"0c:00.0": {"acs": ["Everything"]}}}, "'Everything' is no ACS bit"),
        ({"devices": {"0c:00.0": {"acs": ["ReqRedir"]}}}, "cx7-400 cannot do ReqRedir"),
        ({"devices": {"0d:00.0": {"under": "0c:00.0"}}}, "0000:0c:00.0 is no bridge"),
        ({"devices": {"11:00.0": {"part": "nvme", "under": "0b:00.0"}}}, "lies on more than one bus"),
        ({"devices": {"0c:00.0": None}, "nics": {"gpu0": None}}, "a port with nothing below it"),
        ({"devices": {"11:00.0": {}, "0000:11:00.0": {}}}, "0000:11:00.0 is described twice"),
        ({"devices": {"ham": {"part": "nvme", "under": "0b:00.0"}}}, "'ham' is no PCI address"),
        ({"nics": {"gpu0": {"rdma": "mlx5_1"}}}, "two are named mlx5_1"),
        ({"nics": {"gpu0": {"at": "0b:00.0"}}}, "0000:0b:00.0 is no RDMA device"),
        ({"nics": {"gpu0": {"at": "99:00.0"}}}, "there is no device at 0000:99:00.0"),
        ({"nics": {"gpu0": {"mac": "B8:3F"}}}, "'B8:3F' is no MAC address"),
        ({"nics": {"gpu0": {"irq_cpus": "5-3"}}}, "'5-3' is no CPU range"),
        ({"nics": {"gpu0": {"state": "UP"}}}, "does not know 'UP'"),
        ({"nics": {"gpu0": {"gbps": "400"}}}, "expected a int, found '400'"),
        ({"default_route": {"nic": "backend"}}, "there is no such NIC"),
        ({"cpus": {"cores": 55, "nodes_per_socket": 2}}, "do not divide evenly"),
        ({"numa_distance": {1: None}}, "needs 2 distances"),
        ({"absent": ["sys/nothing"]}, "there is nothing to take out"),
        ({"cut": {"sys/nothing": 3}}, "there is no such file"),
        ({"nvidia": {"version": "1", "open": True, "build": "b", "compiler": "c", "model": "m", "vbios": "v"}},
         "its module is not loaded"),
    ],
)  # fmt: skip
def test_a_wrong_description_is_refused_with_its_place(patch: object, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        tree_of(load(EIGHT, patch))
    assert message in str(caught.value)
    assert caught.value.remedy


def test_a_base_that_names_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "machine.yml").write_text("base: machine.yml\n")
    with pytest.raises(MachineError, match="is its own base"):
        load(tmp_path)


def test_files_and_links_of_a_description_come_last(tmp_path: Path) -> None:
    build(
        EIGHT,
        tmp_path / "t",
        {
            "files": {"sys/class/infiniband/mlx5_0/ports/1/rate": "nonsense\n"},
            "symlinks": {"sys/class/infiniband/mlx5_1/device": "../../../nowhere"},
            "absent": ["sys/class/infiniband/mlx5_2/ports/1/gids"],
        },
    )
    device = tmp_path / "t/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_0"
    assert (device / "ports/1/rate").read_text() == "nonsense\n"
    assert os.readlink(tmp_path / "t/sys/class/infiniband/mlx5_1/device") == "../../../nowhere"
    assert not (tmp_path / "t/sys/class/infiniband/mlx5_2/ports/1/gids").exists()


def test_irq_numbers_follow_the_order_of_drivers() -> None:
    machine = load(EIGHT)
    shape = topology(machine.cpus)
    owned = interrupts(machine, shape, {a: f.node for a, f in functions(machine).items()})
    ports = [
        one.number
        for address, many in owned.items()
        if address.device or address.bus in (0xE2,)
        for one in many
    ]
    rails = [
        one.number for address, many in owned.items() if machine.by_address[address].part.rdma for one in many
    ]
    assert max(ports) < min(rails)
    numbers = sorted(one.number for many in owned.values() for one in many)
    assert numbers == list(range(27, 27 + len(numbers)))


def test_addresses_sort_as_pci_enumerates() -> None:
    texts = ["0000:0c:00.0", "0000:4b:00.1", "0001:00:00.0", "0000:4b:00.0"]
    assert [str(address) for address in sorted(Address.parse(text, "test") for text in texts)] == [
        "0000:0c:00.0",
        "0000:4b:00.0",
        "0000:4b:00.1",
        "0001:00:00.0",
    ]
    assert IPv4Interface("10.100.0.1/31").network.prefixlen == 31
