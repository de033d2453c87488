"""Interrupts: /proc/interrupts, /proc/irq, and the vectors that each PCI function owns.

Formats: kernel/irq/proc.c and arch/x86/kernel/irq.c; an mlx5 vector's name is `mlx5_comp<N>@pci:<address>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cpusets import format_list
from .model import Address, Device, Machine, Nic, Vectors
from .topology import Topology
from .tree import Tree

_LEGACY = ((0, 2, "timer"), (8, 8, "rtc0"), (9, 9, "acpi"))
_PORT_SERVICES = {"root-port": "PCIe PME, aerdrv", "downstream": "pciehp"}


@dataclass(frozen=True)
class Interrupt:
    """One interrupt line of /proc/interrupts.

    allowed: smp_affinity; effective: where it fires; hint: affinity_hint, empty where the driver gave none.
    """

    number: int
    chip: str
    hardware: int
    name: str
    node: int
    allowed: tuple[int, ...]
    effective: tuple[int, ...]
    hint: tuple[int, ...]
    count: int


def interrupts(
    machine: Machine, shape: Topology, nodes: Mapping[Address, int]
) -> dict[Address, tuple[Interrupt, ...]]:
    """The MSI and MSI-X vectors of each function, numbered in the order in which drivers take them.

    Ports come first, as the kernel binds them while it scans the buses.
    """
    ports = [device for device in machine.devices if device.part.port in _PORT_SERVICES]
    others = [device for device in machine.devices if device.part.port not in _PORT_SERVICES]
    number = machine.irq_first
    owned: dict[Address, tuple[Interrupt, ...]] = {}
    ordinal: dict[str, int] = {}
    for device in (*ports, *others):
        rank = ordinal.setdefault(device.driver or "", 0)
        vectors = _of_device(machine, shape, device, nodes[device.address], number, rank)
        if vectors:
            owned[device.address] = vectors
            number += len(vectors)
        ordinal[device.driver or ""] += 1
    return owned


def _of_device(
    machine: Machine, shape: Topology, device: Device, node: int, first: int, rank: int
) -> tuple[Interrupt, ...]:
    if device.part.port in _PORT_SERVICES:
        if device.part.port == "downstream" and device.slot is None:
            return ()
        names = [_PORT_SERVICES[device.part.port]]
        vectors = Vectors(tuple(names), "", 0, managed=False)
    elif device.part.vectors is None or device.driver is None:
        return ()
    else:
        vectors = device.part.vectors
    nic = next((nic for nic in machine.nics if nic.at == device.address), None)
    count = vectors.count if nic is None or nic.channels is None else nic.channels
    words = {
        "address": str(device.address),
        "netdev": (nic.netdev or "") if nic else "",
        "rank": str(rank),
    }
    made = []
    for position in range(len(vectors.fixed) + count):
        queue = position - len(vectors.fixed)
        template = vectors.fixed[position] if queue < 0 else vectors.queues
        name = template.format(**words, k=queue, k1=queue + 1)
        chip, hardware = _chip(machine, device, position)
        allowed, effective, hint = _affinity(machine, shape, node, nic, vectors, queue, count)
        made.append(
            Interrupt(
                number=first + position,
                chip=chip,
                hardware=hardware,
                name=name,
                node=node,
                allowed=allowed,
                effective=effective,
                hint=hint,
                count=1000 * (queue + 1) + 7 if queue >= 0 else 3,
            )
        )
    return tuple(made)


def _chip(machine: Machine, device: Device, position: int) -> tuple[str, int]:
    """The chip's name and the hardware number: per device and from 0 since Linux 6.2, of one flat space before."""
    remapped = "" if machine.iommu == "off" else "IR-"
    if machine.irq_chip == "per-device":
        kind = "MSIX" if device.part.msix else "MSI"
        return f"{remapped}PCI-{kind}-{device.address}", position
    address = device.address
    devfn = address.bus << 8 | address.device << 3 | address.function
    return f"{remapped}PCI-MSI", address.domain << 27 | devfn << 11 | position


def _affinity(
    machine: Machine, shape: Topology, node: int, nic: Nic | None, vectors: Vectors, queue: int, count: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What the kernel allows, where the vector fires and what the driver hinted."""
    everywhere = machine.irq_default_cpus or shape.online
    local = shape.local(node)
    if queue < 0:
        return everywhere, local[:1], ()
    if vectors.managed:
        share = [cpu for index, cpu in enumerate(shape.online) if index * count // len(shape.online) == queue]
        return tuple(share), tuple(share[:1]), ()
    spread = (local[queue % len(local)],)
    if nic is not None and nic.irq_cpus is not None:
        own = (nic.irq_cpus[queue % len(nic.irq_cpus)],)
        return own, own, spread
    return everywhere, spread, spread


def add_interrupts(
    tree: Tree, machine: Machine, shape: Topology, owned: Mapping[Address, tuple[Interrupt, ...]]
) -> None:
    """/proc/interrupts and /proc/irq."""
    chip = "IO-APIC" if machine.iommu == "off" else "IR-IO-APIC"
    legacy = [
        Interrupt(number, chip, pin, name, -1, shape.online, shape.online[:1], (), 1)
        for number, pin, name in _LEGACY
    ]
    lines = sorted([*legacy, *(one for many in owned.values() for one in many)], key=lambda one: one.number)
    tree.file("proc/interrupts", _table(shape, lines))
    tree.lines("proc/irq", {"default_smp_affinity": shape.mask(machine.irq_default_cpus or shape.online)})
    everywhere = (shape.mask(shape.online), format_list(shape.online))
    for one in lines:
        folder = f"proc/irq/{one.number}"
        allowed = (
            everywhere if one.allowed == shape.online else (shape.mask(one.allowed), format_list(one.allowed))
        )
        tree.lines(
            folder,
            {
                "smp_affinity": allowed[0],
                "smp_affinity_list": allowed[1],
                "effective_affinity": shape.mask(one.effective),
                "effective_affinity_list": format_list(one.effective),
                "affinity_hint": shape.mask(one.hint),
                "node": one.node,
            },
        )
        for action in one.name.split(", "):
            tree.folder(f"{folder}/{action}")


def _table(shape: Topology, lines: list[Interrupt]) -> str:
    width = max(4, len(str(lines[-1].number)))
    texts = [" " * (width + 8) + "".join(f"CPU{cpu:<8d}" for cpu in shape.online) + "\n"]
    position = {cpu: index for index, cpu in enumerate(shape.online)}
    zeros = [f"{0:10d} "] * len(shape.online)
    for one in lines:
        counts = list(zeros)
        for cpu in one.effective:
            counts[position[cpu]] = f"{one.count:10d} "
        # `edge` for all of them: message interrupts have no level.
        trigger = "fasteoi" if one.name == "acpi" else "edge"
        texts.append(
            f"{one.number:{width}d}: {''.join(counts)} {one.chip:>8} {one.hardware:{width}d}-{trigger:<8}  {one.name}\n"
        )
    texts += [
        f"{short:>{width}}: {''.join(zeros)}  {long}\n"
        for short, long in (("NMI", "Non-maskable interrupts"), ("LOC", "Local timer interrupts"),
                            ("RES", "Rescheduling interrupts"), ("CAL", "Function call interrupts"),
                            ("TLB", "TLB shootdowns"))
    ]  # fmt: skip
    texts += [f"{'ERR':>{width}}: {0:10d}\n", f"{'MIS':>{width}}: {0:10d}\n"]
    return "".join(texts)
