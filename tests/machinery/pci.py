"""The PCI tree: /sys/devices/pciDDDD:BB, /sys/bus/pci, /sys/class/pci_bus, /sys/kernel/iommu_groups.

Files and formats: Documentation/ABI/testing/sysfs-bus-pci and drivers/pci/pci-sysfs.c of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from .addresses import Assigned, Layout
from .config_space import config_space
from .cpusets import format_list
from .functions import Function
from .interrupts import Interrupt
from .iommu import iommu_groups
from .model import Address, Device, Link, Machine
from .topology import Topology
from .tree import Tree
from .vpd import vpd

DEVICES = "sys/bus/pci/devices"


def add_pci(
    tree: Tree,
    machine: Machine,
    shape: Topology,
    found: Mapping[Address, Function],
    interrupts: Mapping[Address, tuple[Interrupt, ...]],
) -> None:
    """Every PCI file but what network drivers add."""
    layout = Layout(machine, found)
    groups = {} if machine.iommu == "off" else iommu_groups(found)
    for host in machine.hosts:
        _add_bus(tree, shape, host, f"sys/devices/pci{host}", machine.hosts[host])
    for address, function in found.items():
        _add_function(tree, machine, shape, function, layout.assigned(address), interrupts.get(address, ()))
        if address in groups:
            _add_group(tree, machine, function, groups[address])
        if function.buses is not None:
            bus = f"{address.domain:04x}:{function.buses[1]:02x}"
            _add_bus(tree, shape, bus, function.path, function.node)
            _add_slot(tree, function)
    tree.folder("sys/bus/pci/slots")
    tree.lines("sys/bus/pci", {"drivers_autoprobe": 1})
    if groups:
        for number, _ in enumerate(machine.hosts):
            tree.folder(f"sys/devices/virtual/iommu/dmar{number}/devices")
            tree.link(f"sys/class/iommu/dmar{number}", f"sys/devices/virtual/iommu/dmar{number}")
    else:
        tree.folder("sys/class/iommu")


def _add_bus(tree: Tree, shape: Topology, bus: str, above: str, node: int) -> None:
    folder = f"{above}/pci_bus/{bus}"
    cpus = shape.local(node)
    tree.lines(folder, {"cpuaffinity": shape.mask(cpus), "cpulistaffinity": format_list(cpus)})
    tree.link(f"{folder}/device", above)
    tree.link(f"{folder}/subsystem", "sys/class/pci_bus")
    tree.link(f"sys/class/pci_bus/{bus}", folder)


def _add_slot(tree: Tree, function: Function) -> None:
    device = function.device
    if device.slot is None or function.buses is None:
        return
    folder = f"sys/bus/pci/slots/{device.slot}"
    occupied = bool(function.children)
    tree.lines(
        folder,
        {
            "address": f"{device.address.domain:04x}:{function.buses[1]:02x}:00",
            "max_bus_speed": _speed(device.link),
            "cur_bus_speed": _speed(function.now) if occupied else "Unknown",
            "adapter": int(occupied),
            "power": int(occupied),
        },
    )


def _speed(link: Link) -> str:
    return "Unknown" if link.speed is None else f"{link.speed} GT/s PCIe"


def _add_function(
    tree: Tree,
    machine: Machine,
    shape: Topology,
    function: Function,
    assigned: Assigned,
    interrupts: tuple[Interrupt, ...],
) -> None:
    device, part, folder = function.device, function.device.part, function.path
    cpus = shape.local(function.node)
    tree.lines(
        folder,
        {
            "vendor": f"0x{part.vendor:04x}",
            "device": f"0x{part.device:04x}",
            "subsystem_vendor": f"0x{part.subvendor:04x}",
            "subsystem_device": f"0x{part.subdevice:04x}",
            "class": f"0x{part.class_code:06x}",
            "revision": f"0x{part.revision:02x}",
            "numa_node": function.node,
            "local_cpus": shape.mask(cpus),
            "local_cpulist": format_list(cpus),
            "enable": 1,
            "irq": interrupts[0].number if interrupts and part.msi else 0,
            "modalias": _modalias(device),
            "uevent": _uevent(device),
            "msi_bus": 1,
            "power_state": "D0",
            "broken_parity_status": 0,
            "dma_mask_bits": 64 if part.driver else 32,
            "driver_override": "(null)",
            "ari_enabled": int(part.ari),
        },
    )
    tree.file(f"{folder}/resource", _resources(function, assigned))
    tree.file(
        f"{folder}/config",
        config_space(
            device,
            now=function.now,
            multifunction=function.multifunction,
            buses=function.buses,
            bars=assigned.bars,
            windows=assigned.windows,
            interrupts=len(interrupts),
            occupied=bool(function.children),
        ),
    )
    if part.port != "conventional":
        tree.lines(
            folder,
            {
                "max_link_speed": _speed(device.link),
                "max_link_width": 255 if device.link.width is None else device.link.width,
                "current_link_speed": _speed(function.now),
                "current_link_width": function.now.width or 0,
            },
        )
    _add_optional(tree, function)
    kind = "msix" if part.msix else "msi"
    for interrupt in interrupts:
        tree.lines(f"{folder}/msi_irqs", {str(interrupt.number): kind})
    tree.link(f"{folder}/subsystem", "sys/bus/pci")
    tree.link(f"{DEVICES}/{device.address}", folder)
    if device.driver is not None:
        _bind(tree, machine, function, device.driver)


def _add_optional(tree: Tree, function: Function) -> None:
    device, part, folder = function.device, function.device.part, function.path
    if function.buses is not None:
        tree.lines(
            folder,
            {"secondary_bus_number": function.buses[1], "subordinate_bus_number": function.buses[2]},
        )
    if part.aer:
        for name, kinds in _ERRORS.items():
            texts = [f"{kind} 0\n" for kind in kinds]
            tree.file(f"{folder}/{name}", "".join(texts))
    if part.functions_max:
        tree.lines(
            folder,
            {"sriov_totalvfs": part.functions_max, "sriov_numvfs": 0, "sriov_drivers_autoprobe": 1},
        )
    if device.label is not None:
        tree.lines(folder, {"label": device.label})
    if part.vpd_name is not None:
        tree.file(f"{folder}/vpd", vpd(part.vpd_name, part.vpd_fields))
    if part.class_code >> 8 == 0x0300:
        tree.lines(folder, {"boot_vga": 1})


_CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
_UNCORRECTABLE = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC",
    "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked",
)  # fmt: skip
_ERRORS = {
    "aer_dev_correctable": (*_CORRECTABLE, "TOTAL_ERR_COR"),
    "aer_dev_nonfatal": (*_UNCORRECTABLE, "TOTAL_ERR_NONFATAL"),
    "aer_dev_fatal": (*_UNCORRECTABLE, "TOTAL_ERR_FATAL"),
}


def _modalias(device: Device) -> str:
    part = device.part
    code = f"{part.class_code:06X}"
    return (
        f"pci:v{part.vendor:08X}d{part.device:08X}sv{part.subvendor:08X}sd{part.subdevice:08X}"
        f"bc{code[:2]}sc{code[2:4]}i{code[4:]}"
    )


def _uevent(device: Device) -> str:
    part = device.part
    lines = [] if device.driver is None else [f"DRIVER={device.driver}"]
    lines += [
        f"PCI_CLASS={part.class_code:X}",
        f"PCI_ID={part.vendor:04X}:{part.device:04X}",
        f"PCI_SUBSYS_ID={part.subvendor:04X}:{part.subdevice:04X}",
        f"PCI_SLOT_NAME={device.address}",
        f"MODALIAS={_modalias(device)}",
    ]
    return "\n".join(lines)


def _resources(function: Function, assigned: Assigned) -> str:
    # Six BARs, the ROM, six SR-IOV BARs; a bridge has four windows more (I/O, memory, prefetchable, CardBus).
    rows = [(0, 0, 0)] * (17 if function.bridge else 13)
    for index, base in assigned.bars.items():
        bar = function.device.part.bars[index]
        flags = 0x40200 | (0x100004 if bar.wide else 0) | (0x2008 if bar.prefetchable else 0)
        rows[index] = (base, base + bar.size - 1, flags)
    for kind, row, flags in (("narrow", 14, 0x200), ("prefetchable", 15, 0x102201)):
        if kind in assigned.windows:
            rows[row] = (*assigned.windows[kind], flags)
    return "".join(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}\n" for start, end, flags in rows)


def _bind(tree: Tree, machine: Machine, function: Function, driver: str) -> None:
    folder = f"sys/bus/pci/drivers/{driver}"
    tree.link(f"{function.path}/driver", folder)
    tree.link(f"{folder}/{function.device.address}", function.path)
    if driver in {module.name for module in machine.modules}:
        tree.link(f"{folder}/module", f"sys/module/{driver}")


def _add_group(tree: Tree, machine: Machine, function: Function, number: int) -> None:
    folder = f"sys/kernel/iommu_groups/{number}"
    tree.lines(folder, {"type": "identity" if machine.iommu == "passthrough" else "DMA-FQ"})
    tree.link(f"{folder}/devices/{function.device.address}", function.path)
    tree.link(f"{function.path}/iommu_group", folder)
    host = list(machine.hosts).index(function.device.host)
    tree.link(f"{function.path}/iommu", f"sys/devices/virtual/iommu/dmar{host}")
