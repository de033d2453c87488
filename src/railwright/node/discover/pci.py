"""The PCI tree: GPUs, NICs, NVSwitches, NVMe and every bridge above them, from sys/bus/pci."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ..config_space import EXTENDED_BYTES
from ..model import Gpu, InputError, Link, PciDevice, Root, normalise_address, sort_key
from ..model.pci import is_data_direct
from .config import CONFIG_BYTES, Config, read_config
from .tree import Tree

DEVICES = "sys/bus/pci/devices"
NVIDIA = "0x10de"
_AMD = "0x1002"

FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_MINOR = re.compile(r"[0-9]{1,3}")
_ID = re.compile(r"0x[0-9a-f]{4}")
_CLASS = re.compile(r"0x[0-9a-f]{6}")
_GROUP = re.compile(r"[0-9]{1,9}")
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?) GT/s(?: PCIe)?", re.ASCII)
_SPEEDS = frozenset({2.5, 5.0, 8.0, 16.0, 32.0, 64.0})
# 0: no link; 255: PCIE_LNK_WIDTH_UNKNOWN (include/linux/pci.h); 63: all ones from a function that fell off the bus.
_NO_WIDTH = frozenset({0, 63, 255})

# Class codes without the programming interface: PCI-SIG's PCI Code and ID Assignment Specification.
_GPU_CLASSES = {
    NVIDIA: frozenset({"0x0300", "0x0302"}),
    _AMD: frozenset({"0x0380", "0x0302", "0x1200"}),
}
_NIC_CLASSES = frozenset({"0x0200", "0x0207"})
_NVME_CLASS = "0x0108"
_NVSWITCH_CLASS = "0x0680"
# The GPU side of a ConnectX-8 Data Direct pair (NCCL 2.30.7 src/transport/net_ib/init.cc:375).


@dataclass(frozen=True)
class PciTree:
    """What is kept, in PCI order, with what the other readers need of it.

    configs: config space by address. places: real folder below the root by address. functions: address of a VF to its
    PF's, "" for a function known to be none.
    """

    devices: tuple[PciDevice, ...]
    roots: tuple[Root, ...]
    configs: dict[str, Config]
    places: dict[str, str]
    functions: dict[str, str]
    seen: bool


def is_gpu(device: PciDevice) -> bool:
    """A GPU by vendor and class: 10de 0300 or 0302; 1002 0302, 0380 or 1200."""
    return _short(device.class_code) in _GPU_CLASSES.get(device.vendor or "", frozenset())


def is_nvswitch(device: PciDevice) -> bool:
    """An NVSwitch: 10de with the class "other bridge"."""
    return device.vendor == NVIDIA and _short(device.class_code) == _NVSWITCH_CLASS


def is_nic(device: PciDevice) -> bool:
    """A network function by class: Ethernet or InfiniBand controller."""
    return _short(device.class_code) in _NIC_CLASSES


def read_pci(tree: Tree) -> PciTree:
    """The PCI tree. Raises InputError for text that no kernel writes."""
    addresses = sorted(
        (normalise_address(name, tree.where(f"{DEVICES}/{name}")) for name in tree.names(DEVICES)),
        key=sort_key,
    )
    places: dict[str, str] = {}
    found: dict[str, PciDevice] = {}
    for address in addresses:
        place = tree.resolve(f"{DEVICES}/{address}")
        device = None if place is None else _identify(tree, address, place)
        if place is not None and device is not None:
            places[address] = place
            found[address] = device
    kept = _with_bridges([address for address in found if _matters(tree, found[address])], found)
    slots = _slots(tree)
    configs = {address: _config(tree, f"{places[address]}/config") for address in kept}
    devices = tuple(
        _complete(tree, found[address], places[address], configs[address], slots) for address in kept
    )
    return PciTree(
        devices=devices,
        roots=_roots(tree, devices, places, found),
        configs=configs,
        places=places,
        functions={address: _physical_function(tree, places[address]) for address in kept},
        seen=tree.is_folder(DEVICES),
    )


def address_above(place: str) -> Optional[str]:
    """The PCI function that a device folder hangs on: the last one in its path, or None."""
    for part in reversed(place.split("/")):
        if FUNCTION.fullmatch(part):
            return part
        if _HOST_BRIDGE.fullmatch(part):
            return None
    return None


def host_bridge(place: str) -> Optional[str]:
    """The host bridge in a device's path ("pci0000:15"), the lowest one: VMD puts one below another function."""
    return next((part for part in reversed(place.split("/")) if _HOST_BRIDGE.fullmatch(part)), None)


def gpus(tree: Tree, pci: PciTree) -> tuple[Gpu, ...]:
    """GPUs in PCI order; model and UUID where the NVIDIA driver is loaded. NVLinks are not to be seen here."""
    found = []
    for index, device in enumerate(device for device in pci.devices if is_gpu(device)):
        model, uuid, minor = _information(tree, device.address)
        found.append(
            Gpu(
                name=f"GPU{index}",
                index=index,
                address=device.address,
                model=model,
                uuid=uuid,
                numa=device.numa,
                cpus=device.local_cpus,
                minor=minor,
            )
        )
    return tuple(found)


def _short(class_code: Optional[str]) -> str:
    return (class_code or "")[:6]


def _identify(tree: Tree, address: str, place: str) -> Optional[PciDevice]:
    """Class and IDs; None where the function went away while it was read."""
    values: dict[str, str] = {}
    for name, form in (("class", _CLASS), ("vendor", _ID), ("device", _ID)):
        text = tree.text(f"{place}/{name}")
        if text is None and not tree.is_folder(place):
            return None
        if text is None or not form.fullmatch(text):
            raise InputError(
                tree.where(f"{place}/{name}"),
                "cannot be read" if text is None else f"found {text!r}",
                f"expected a PCI {name} code like {'0x030200' if name == 'class' else '0x10de'}",
            )
        values[name] = text
    return PciDevice(
        address=address,
        parent=_parent(address, place),
        vendor=values["vendor"],
        device=values["device"],
        class_code=values["class"],
        numa=_numa(tree, place),
    )


def _parent(address: str, place: str) -> Optional[str]:
    above, _, last = place.rpartition("/")
    bridge = above.rpartition("/")[2]
    # A tree that was copied without its links shows sys/bus/pci/devices/<address> and nothing above it.
    return (
        bridge if last == address and (FUNCTION.fullmatch(bridge) or _HOST_BRIDGE.fullmatch(bridge)) else None
    )


def _numa(tree: Tree, place: str) -> Optional[int]:
    node = tree.integer(f"{place}/numa_node")
    if node is not None and node < -1:
        raise InputError(
            tree.where(f"{place}/numa_node"), f"found {node}", "expected a NUMA node, or -1 for unknown"
        )
    return None if node == -1 else node


def _matters(tree: Tree, device: PciDevice) -> bool:
    place = f"{DEVICES}/{device.address}"
    short = _short(device.class_code)
    return (
        is_gpu(device)
        or is_nvswitch(device)
        or short == _NVME_CLASS
        or is_nic(device)
        or is_data_direct(device.vendor, device.class_code)
        # Some NICs bear another class (0280; 0c06 of Intel's and QLogic's InfiniBand): what they carry tells.
        or tree.is_folder(f"{place}/infiniband")
        or (short.startswith("0x02") and tree.is_folder(f"{place}/net"))
    )


def _with_bridges(wanted: list[str], found: dict[str, PciDevice]) -> list[str]:
    kept: set[str] = set()
    for start in wanted:
        address: Optional[str] = start
        while address is not None and address in found and address not in kept:
            kept.add(address)
            address = found[address].parent
    return sorted(kept, key=sort_key)


def _complete(tree: Tree, device: PciDevice, place: str, config: Config, slots: dict[str, str]) -> PciDevice:
    group = tree.link_name(f"{place}/iommu_group")
    if group is not None and not _GROUP.fullmatch(group):
        raise InputError(tree.where(f"{place}/iommu_group"), f"leads to {group!r}", "expected a group number")
    return PciDevice(
        address=device.address,
        parent=device.parent,
        vendor=device.vendor,
        device=device.device,
        subsystem_vendor=_identifier(tree, f"{place}/subsystem_vendor"),
        subsystem_device=_identifier(tree, f"{place}/subsystem_device"),
        class_code=device.class_code,
        port=config.port,
        numa=device.numa,
        local_cpus=tree.cpulist(f"{place}/local_cpulist"),
        link=_link(tree, place, config.link),
        acs=config.acs,
        mrrs=config.mrrs,
        mps=config.mps,
        relaxed_ordering=config.relaxed_ordering,
        driver=tree.link_name(f"{place}/driver"),
        iommu_group=None if group is None else int(group),
        slot=slots.get(device.address.rpartition(".")[0]),
    )


def _config(tree: Tree, path: str) -> Config:
    data = tree.data(path, EXTENDED_BYTES)
    if data is not None and len(data) not in CONFIG_BYTES:
        raise InputError(
            tree.where(path), f"holds {len(data)} bytes", f"expected one of {sorted(CONFIG_BYTES)}"
        )
    return read_config(data)


def _identifier(tree: Tree, path: str) -> Optional[str]:
    text = tree.text(path)
    if text is not None and not _ID.fullmatch(text):
        raise InputError(tree.where(path), f"found {text!r}", "expected a PCI identifier like 0x10de")
    return text


def _link(tree: Tree, place: str, config: Link) -> Link:
    """The kernel's own reading, and config space's where the kernel shows none (before 4.13)."""

    def speed(name: str, known: Optional[float]) -> Optional[float]:
        told = _speed(tree, f"{place}/{name}")
        return known if told is None else told

    def width(name: str, known: Optional[int]) -> Optional[int]:
        told = _width(tree, f"{place}/{name}")
        return known if told is None else told

    return Link(
        speed=speed("current_link_speed", config.speed),
        width=width("current_link_width", config.width),
        max_speed=speed("max_link_speed", config.max_speed),
        max_width=width("max_link_width", config.max_width),
    )


def _speed(tree: Tree, path: str) -> Optional[float]:
    text = tree.text(path)
    # "Unknown" since 5.x, "Unknown speed" before (drivers/pci/probe.c, pci_speed_string).
    if text is None or text.startswith("Unknown"):
        return None
    match = _SPEED.fullmatch(text)
    if match is None or float(match[1]) not in _SPEEDS:
        raise InputError(tree.where(path), f"found {text!r}", "expected a link speed like 32.0 GT/s PCIe")
    return float(match[1])


def _width(tree: Tree, path: str) -> Optional[int]:
    lanes = tree.integer(path)
    if lanes is None or lanes in _NO_WIDTH:
        return None
    if not 1 <= lanes <= 32:
        raise InputError(tree.where(path), f"found {lanes}", "expected a link width of 1 to 32 lanes")
    return lanes


def _slots(tree: Tree) -> dict[str, str]:
    """Slot names by "domain:bus:device". Where two slots claim one address, the first name in order stands."""
    slots: dict[str, str] = {}
    for name in tree.names("sys/bus/pci/slots"):
        address = tree.text(f"sys/bus/pci/slots/{name}/address")
        if address is not None:
            slots.setdefault(address, name)
    return slots


def _roots(
    tree: Tree, devices: tuple[PciDevice, ...], places: dict[str, str], found: dict[str, PciDevice]
) -> tuple[Root, ...]:
    """Host bridges of what is kept. A node is stated only where all functions below that know one agree."""
    nodes: dict[str, set[int]] = {}
    for address, place in places.items():
        bridge = host_bridge(place)
        numa = found[address].numa
        if bridge is not None:
            nodes.setdefault(bridge, set()).update(() if numa is None else (numa,))
    names = sorted(
        {
            bridge
            for device in devices
            for bridge in (host_bridge(places[device.address]),)
            if bridge is not None
        },
        key=lambda name: tuple(int(part, 16) for part in name[3:].split(":")),
    )
    return tuple(Root(name, next(iter(nodes[name])) if len(nodes[name]) == 1 else None) for name in names)


def _physical_function(tree: Tree, place: str) -> str:
    return tree.link_name(f"{place}/physfn") or ""


def _information(tree: Tree, address: str) -> tuple[Optional[str], Optional[str], Optional[int]]:
    """Model, UUID and the number of the device file."""
    text = tree.text(f"proc/driver/nvidia/gpus/{address}/information")
    lines = (line.partition(":") for line in (text or "").splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    uuid = fields.get("GPU UUID")
    minor = fields.get("Device Minor", "")
    # The driver prints question marks until a client has initialised the GPU.
    return (
        fields.get("Model"),
        None if uuid is None or "?" in uuid else uuid,
        int(minor) if _MINOR.fullmatch(minor) else None,
    )
