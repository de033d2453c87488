"""Traits: what is compared over the nodes of one shape, each by its place. What a witness does not tell is no trait.

A trait that is read while the node idles is none: a GPU's link speed falls and rises with its load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from railwright.node.model import Facts, Link, Nic, PciDevice
from railwright.plan.nvlink import nvlinks
from railwright.plan.tree import Tree

from .seats import Chassis, Seat

_GIB = 1 << 30
# Bits that send peer traffic up to the root complex (PCIe 6.0, 7.7.11.2).
_REDIRECTS = ("ReqRedir", "CmpltRedir", "UpstreamFwd")


@dataclass(frozen=True)
class Kind:
    """One kind of trait. words: what is said of it, before the value. remedy: what to do where a node differs."""

    code: str
    severity: str
    words: str
    remedy: str


KINDS: dict[str, Kind] = {
    kind.code: kind
    for kind in (
        Kind(
            "fleet.link_width",
            "error",
            "its link runs at",
            "power the node off, reseat the card or riser; if it stays, the slot or card is faulty",
        ),
        Kind(
            "fleet.link_speed",
            "error",
            "its link is capable of",
            "look for a PCIe speed limit in the BIOS, then at the riser; compare with `lspci -vvs` on a usual node",
        ),
        Kind(
            "fleet.nic_firmware",
            "warning",
            "its firmware is",
            "bring the firmware to that of the others (`mstflint -d ADDRESS query`), then power-cycle the node",
        ),
        Kind(
            "fleet.nic_link",
            "warning",
            "its port is",
            "look at cable, transceiver, switch port and LINK_TYPE (`mstconfig -d ADDRESS query`)",
        ),
        Kind(
            "fleet.nvlinks",
            "error",
            "its NVLinks are",
            "see `nvidia-smi nvlink -s`, the fabric manager and dmesg (Xid 74); take the node out of service",
        ),
        Kind(
            "fleet.acs",
            "warning",
            "ACS above it redirects",
            "set ACS in the BIOS as on the other nodes; peer traffic must not be redirected",
        ),
        Kind(
            "fleet.read_request",
            "warning",
            "its largest read request is",
            "set it as on the other nodes (`lspci -vvs ADDRESS` shows MaxReadReq)",
        ),
        Kind(
            "fleet.device_numa",
            "warning",
            "the firmware puts it on",
            "bring the BIOS to the version and settings of the others",
        ),
        Kind(
            "fleet.numa", "error", "the processors show", "set NPS or SNC in the BIOS as on the other nodes"
        ),
        Kind(
            "fleet.cpus",
            "error",
            "the processors are",
            "look for dead or disabled cores, SMT and the CPU model in the BIOS",
        ),
        Kind(
            "fleet.memory", "warning", "the memory is", "look for missing or disabled DIMMs in the BMC's log"
        ),
        Kind("fleet.bios", "warning", "the BIOS is", "bring the BIOS to that of the others"),
        Kind("fleet.kernel", "warning", "the kernel is", "boot the kernel of the others"),
        Kind("fleet.os", "warning", "the system is", "install what the others run"),
        Kind(
            "fleet.driver",
            "warning",
            "the NVIDIA driver is",
            "install the driver of the others (playbooks/upgrade_driver.yml)",
        ),
        Kind("fleet.nic_driver", "warning", "mlx5_core is", "install the NIC driver of the others"),
        Kind(
            "fleet.iommu",
            "warning",
            "the IOMMU is",
            "set the IOMMU in BIOS and kernel command line as on the others",
        ),
        Kind(
            "fleet.secure_boot", "warning", "Secure Boot is", "set Secure Boot in the BIOS as on the others"
        ),
        Kind(
            "fleet.virtual",
            "error",
            "the machine is",
            "find out why one of these nodes is a guest and others are not",
        ),
    )
}

# (place, code): the place is "" where the node as a whole is meant.
Traits = dict[tuple[str, str], str]


def traits_of(facts: Facts, chassis: Chassis) -> Traits:
    """Every trait of a machine."""
    tree = Tree(facts)
    nics: dict[str, Nic] = {}
    for nic in facts.nics:
        if nic.address is not None and nic.rdma is not None:
            nics.setdefault(nic.address, nic)
    gpus = {gpu.address: gpu for gpu in facts.gpus}
    found = {("", code): value for code, value in _of_host(facts)}
    for seat in chassis.seats:
        for code, value in _of_seat(seat, tree):
            found[seat.place, code] = value
        if seat.address in nics and seat.kind == "NIC":
            for code, value in _of_nic(nics[seat.address], tree.device(seat.address)):
                found[seat.place, code] = value
        gpu = gpus.get(seat.address)
        links = None if gpu is None or gpu.partial else nvlinks(gpu)
        if links is not None:
            found[seat.place, "fleet.nvlinks"] = str(links)
    return found


def _of_host(facts: Facts) -> Iterator[tuple[str, str]]:
    host, cpus = facts.host, facts.cpus
    nodes = [node for node in facts.numa if node.cpus]
    if nodes:
        yield "fleet.numa", f"{len(nodes)} NUMA node{'' if len(nodes) == 1 else 's'}"
    if cpus.cores:
        threads = sum(len(core.cpus) for core in cpus.cores)
        yield (
            "fleet.cpus",
            f"{len(cpus.cores)} cores with {threads} threads of {cpus.model_name or 'an unknown model'}",
        )
    sizes = [node.memory for node in facts.numa if node.memory is not None]
    if sizes and len(sizes) == len(facts.numa):
        # What the firmware keeps for itself differs by some MiB from boot to boot.
        yield "fleet.memory", f"{round(sum(sizes) / _GIB / 16) * 16} GiB"
    if host.bios is not None:
        yield "fleet.bios", host.bios
    if host.kernel is not None:
        yield "fleet.kernel", host.kernel
    if host.os_id is not None:
        yield "fleet.os", " ".join(filter(None, (host.os_id, host.os_version)))
    if host.driver is not None:
        yield "fleet.driver", host.driver
    for module in host.modules or ():
        if module.name == "mlx5_core" and module.version is not None:
            yield "fleet.nic_driver", module.version
    if host.iommu is not None:
        yield "fleet.iommu", "on" if host.iommu else "off"
    if host.secure_boot is not None:
        yield "fleet.secure_boot", "on" if host.secure_boot else "off"
    if host.virtual is not None:
        yield "fleet.virtual", host.virtual or "bare metal"


def _of_seat(seat: Seat, tree: Tree) -> Iterator[tuple[str, str]]:
    device = tree.device(seat.address)
    if device is None:
        return
    port = tree.parent(seat.address)
    if device.link.width is not None:
        yield "fleet.link_width", f"x{device.link.width}"
    speed = _able(device.link, port)
    if speed is not None:
        yield "fleet.link_speed", f"{speed:g} GT/s"
    bridges = tree.bridges(seat.address)
    if bridges and all(bridge.acs is not None for bridge in bridges):
        redirects = [
            bit
            for bit in _REDIRECTS
            if any(bridge.acs is not None and bit in bridge.acs.control for bridge in bridges)
        ]
        yield "fleet.acs", f"peer traffic ({', '.join(redirects)})" if redirects else "nothing"
    if device.numa is not None:
        yield "fleet.device_numa", f"NUMA node {device.numa}"


def _able(link: Link, port: PciDevice | None) -> float | None:
    ends = [link.max_speed] + ([port.link.max_speed] if port is not None else [])
    known = [end for end in ends if end is not None]
    return min(known) if len(known) == len(ends) else None


def _of_nic(nic: Nic, device: PciDevice | None) -> Iterator[tuple[str, str]]:
    if nic.firmware is not None:
        yield "fleet.nic_firmware", nic.firmware
    words = [nic.link_layer or "", nic.state or "", "" if nic.rate is None else f"{nic.rate / 1000:g} Gb/s"]
    if nic.state is not None:
        yield "fleet.nic_link", " ".join(filter(None, words))
    if device is not None and device.mrrs is not None:
        yield "fleet.read_request", f"{device.mrrs} bytes"
