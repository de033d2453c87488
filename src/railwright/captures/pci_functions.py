"""From PCI functions as a witness lists them to facts: what is kept, host bridges, GPUs and NICs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from railwright.node.discover.pci import is_gpu, is_nic, is_nvswitch
from railwright.node.model import Gpu, PciDevice, Root, sort_key
from railwright.node.model.pci import MELLANOX

# PCI-SIG's PCI Code and ID Assignment Specification, without the programming interface.
INFINIBAND, NVME, DMA = "0x0207", "0x0108", "0x0801"


def short_class(device: PciDevice) -> str:
    """Class and subclass, without the programming interface."""
    return (device.class_code or "")[:6]


def matters(device: PciDevice) -> bool:
    """What the node's own reader keeps too, as far as class and vendor tell."""
    return (
        is_gpu(device)
        or is_nvswitch(device)
        or is_nic(device)
        or short_class(device) == NVME
        or (device.vendor == MELLANOX and short_class(device) == DMA)
    )


def kept(found: Mapping[str, PciDevice], wanted: Iterable[str]) -> tuple[PciDevice, ...]:
    """The wanted functions and every bridge above them, in PCI order."""
    addresses: set[str] = set()
    for start in wanted:
        address: str | None = start
        while address is not None and address in found and address not in addresses:
            addresses.add(address)
            address = found[address].parent
    return tuple(found[address] for address in sorted(addresses, key=sort_key))


def host_bridge(domain: str, bus: int) -> str:
    """The host bridge's name in sysfs ("pci0000:15")."""
    return f"pci{domain}:{bus:02x}"


def roots(found: Mapping[str, PciDevice], devices: Iterable[PciDevice]) -> tuple[Root, ...]:
    """Host bridges of `devices`. A node is stated only where all functions below that know one agree."""
    nodes: dict[str, set[int]] = {}
    tops: dict[str, str] = {}
    for device in found.values():
        top = _top(found, device, tops)
        if top is not None:
            nodes.setdefault(top, set()).update(() if device.numa is None else (device.numa,))
    names = {top for device in devices for top in (_top(found, device, tops),) if top is not None}
    ordered = sorted(
        names, key=lambda name: tuple(int(part, 16) for part in name.removeprefix("pci").split(":"))
    )
    return tuple(Root(name, next(iter(nodes[name])) if len(nodes[name]) == 1 else None) for name in ordered)


def _top(found: Mapping[str, PciDevice], device: PciDevice, tops: dict[str, str]) -> str | None:
    """The host bridge above, remembered for each function passed."""
    way: list[str] = []
    here: PciDevice | None = device
    top: str | None = None
    while here is not None:
        if here.address in tops:
            top = tops[here.address]
            break
        way.append(here.address)
        if here.parent is not None and here.parent not in found:
            top = here.parent if here.parent.startswith("pci") else None
            break
        here = found.get(here.parent or "")
    if top is not None:
        tops.update(dict.fromkeys(way, top))
    return top


def gpus(devices: Iterable[PciDevice]) -> tuple[Gpu, ...]:
    """GPUs in PCI order, which is that of `devices`."""
    return tuple(
        Gpu(f"GPU{index}", index, device.address, numa=device.numa, cpus=device.local_cpus)
        for index, device in enumerate(device for device in devices if is_gpu(device))
    )
