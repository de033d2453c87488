"""Access Control Services: which bits the bridges above GPUs and rails should have, by what the node is for.

Bits by number: 0 SrcValid, 1 TransBlk, 2 ReqRedir, 3 CmpltRedir, 4 UpstreamFwd, 5 EgressCtrl, 6 DirectTrans (PCIe 6.0,
7.7.11). Scenarios and their bits: rdma-core kernel-boot/rdma_topo; NVIDIA AI Enterprise, "virtual machines".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ..node.model import Facts, Finding, PciDevice, Policy, sort_key
from ..node.model.pci import is_data_direct
from ..node.model.pcie_facts import is_guests
from .tree import Tree

NAMES = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
# What decides where peer traffic goes. SrcValid does not: pci=disable_acs_redir leaves it on and redirects nothing.
JUDGED = 0b1011100
# As the kernel's config_acs writes them: bit 6 first, x is left as it is.
_CLEAR = "xx000x0"
_GUEST_NIC, _GUEST = "1x111x1", "xx111x1"
_DIRECT_DMA, _DIRECT_GPU, _DIRECT_ROOT = "xx110x1", "xx101x1", "xx111x0"


@dataclass(frozen=True)
class Bits:
    """What one bridge should have. pattern: in the kernel's form."""

    bridge: str
    pattern: str

    @property
    def mask(self) -> int:
        return int("".join("0" if bit == "x" else "1" for bit in self.pattern), 2)

    @property
    def value(self) -> int:
        return int(self.pattern.replace("x", "0"), 2)


def number(names: Iterable[str]) -> int:
    """Bits by their names as a number."""
    return sum(1 << NAMES.index(name) for name in names if name in NAMES)


def worded(bits: int) -> str:
    """Bits as their names."""
    return ", ".join(name for place, name in enumerate(NAMES) if bits >> place & 1) or "none"


def data_direct(facts: Facts) -> tuple[PciDevice, ...]:
    """ConnectX-8 functions for direct data."""
    return tuple(device for device in facts.pci if is_data_direct(device.vendor, device.class_code))


def is_handed_on(facts: Facts) -> str:
    """Why these bits are rdma_topo's to compute and not ours; "" where they are ours."""
    if facts.cpus.arch in ("aarch64", "arm64"):
        return "on a Grace or Vera machine the bits differ from port to port"
    return ""


def wanted(
    facts: Facts, policy: Policy, tree: Tree, gpus: Sequence[str], nics: Sequence[str]
) -> tuple[Bits, ...]:
    """Bits of every path bridge that has ACS, in PCI order. gpus, nics: PCI addresses of GPUs and rails.

    () where the policy asks for none, and wherever `findings` tells why they cannot be given.
    """
    scenario = policy.pcie.acs
    if scenario is None or _obstacle(facts, policy, tree, gpus, nics):
        return ()
    patterns: dict[str, str] = {}
    for address, is_gpu in [*((nic, False) for nic in nics), *((gpu, True) for gpu in gpus)]:
        for bridge, pattern in _way(facts, tree, scenario, address, is_gpu):
            patterns.setdefault(bridge.address, pattern)
    return tuple(
        Bits(address, patterns[address])
        for address in sorted(patterns, key=sort_key)
        if address not in policy.pcie.acs_except
    )


def kernel_argument(bits: Sequence[Bits]) -> Optional[str]:
    """The word for the kernel's command line (Linux 6.11), None where there is nothing to be said.

    It holds ";", which a boot loader's file has to quote.
    """
    if not bits:
        return None
    return "pci=config_acs=" + ";".join(f"{one.pattern}@{one.bridge}" for one in bits)


def findings(
    facts: Facts, policy: Policy, tree: Tree, gpus: Sequence[str], nics: Sequence[str]
) -> Iterator[Finding]:
    """Why ACS is not as the policy asks, before anything is written and after a boot."""
    if policy.pcie.acs is None:
        yield from _unasked(facts, policy)
        return
    obstacle = _obstacle(facts, policy, tree, gpus, nics)
    if obstacle:
        why, remedy = obstacle
        yield Finding("pcie.acs", "warning", "policy.pcie.acs", f"nothing is written: {why}", remedy)
        return
    asked = wanted(facts, policy, tree, gpus, nics)
    yield from _incapable(facts, asked)
    if policy.pcie.acs_by == "kernel":
        yield from _after_boot(facts, asked)
    if policy.pcie.acs == "direct-nic":
        yield from _groups(facts, tree, gpus)
    if policy.pcie.acs == "virtual":
        yield Finding(
            "pcie.acs_ats",
            "info",
            ", ".join(nics),
            "translated peer traffic needs ATS on the NICs, and a host reboot after it is set",
            'set ATS_ENABLED: "1" in policy.nic_firmware.settings',
        )


def _way(
    facts: Facts, tree: Tree, scenario: str, address: str, is_gpu: bool
) -> Iterator[tuple[PciDevice, str]]:
    """Bridges with ACS above a device, nearest first, and what each should have."""
    if scenario == "direct-nic" and not is_gpu:
        return  # the NIC's own function needs nothing: its data goes by the other one
    above = list(tree.bridges(address))
    if scenario == "direct-nic":
        for function in data_direct(facts):
            shared = {bridge.address for bridge in tree.bridges(function.address)} & {
                b.address for b in above
            }
            port = tree.parent(function.address)
            if shared and port is not None and _has_acs(port):
                yield port, _DIRECT_DMA
    for place, bridge in enumerate(above):
        if not _has_acs(bridge):
            continue
        if scenario == "bare-metal":
            yield bridge, _CLEAR
        elif scenario == "virtual":
            yield bridge, _GUEST_NIC if place == 0 and not is_gpu else _GUEST
        elif place == 0:
            yield bridge, _DIRECT_GPU
        elif bridge.port == "root":
            yield bridge, _DIRECT_ROOT


def _has_acs(bridge: PciDevice) -> bool:
    return bridge.acs is not None and bool(bridge.acs.capability)


def _obstacle(
    facts: Facts, policy: Policy, tree: Tree, gpus: Sequence[str], nics: Sequence[str]
) -> Optional[tuple[str, str]]:
    if facts.host.virtual != "":
        what = "whether this is bare metal is not known" if facts.host.virtual is None else "this is a guest"
        return f"{what}, and only the host's bridges decide", "ask for it on the host"
    handed = is_handed_on(facts)
    if handed:
        return handed, "rdma_topo check; rdma_topo write-grub-acs (rdma-core 61 and later)"
    direct = data_direct(facts)
    if direct and policy.pcie.acs != "direct-nic":
        return (
            f"{direct[0].address} is a ConnectX-8 function for direct data, and one value for all ports cuts it off",
            "set policy.pcie.acs to direct-nic, or follow rdma_topo check",
        )
    if policy.pcie.acs == "direct-nic":
        alone = [gpu for gpu in gpus if not _has_direct(direct, tree, gpu)]
        if alone:
            return (
                f"no function for direct data shares a root port with {', '.join(alone)}",
                "set policy.pcie.acs to what the machine is, or follow rdma_topo check",
            )
    path = {bridge.address: bridge for one in (*gpus, *nics) for bridge in tree.bridges(one)}
    given = [
        device.address for device in facts.pci if is_guests(device.driver) and _is_below(tree, device, path)
    ]
    if given and policy.pcie.acs == "bare-metal":
        return (
            f"{', '.join(given)} belongs to guests, and without ACS a guest reaches its neighbours' memory",
            "set policy.pcie.acs to virtual, or give the devices back to the host first",
        )
    unread = [bridge.address for bridge in path.values() if bridge.acs is None]
    if unread:
        return (
            f"the configuration space of {', '.join(dict.fromkeys(unread))} was not readable",
            "read the node as root",
        )
    return None


def _is_below(tree: Tree, device: PciDevice, path: Mapping[str, PciDevice]) -> bool:
    return any(bridge.address in path for bridge in tree.bridges(device.address))


def _has_direct(direct: Sequence[PciDevice], tree: Tree, gpu: str) -> bool:
    above = {bridge.address for bridge in tree.bridges(gpu)}
    return any(above & {bridge.address for bridge in tree.bridges(one.address)} for one in direct)


def _unasked(facts: Facts, policy: Policy) -> Iterator[Finding]:
    direct = data_direct(facts)
    handed = is_handed_on(facts) or (
        f"{direct[0].address} is a ConnectX-8 function for direct data, and such ports need bits of their own"
        if direct
        else ""
    )
    if handed and facts.host.virtual == "":
        yield Finding(
            "pcie.acs_topology",
            "info",
            ", ".join(one.address for one in direct) or "pcie",
            f"ACS of this machine is looked at only: {handed}",
            "rdma_topo check says whether it is right, rdma_topo write-grub-acs sets it (rdma-core 61 and later)"
            + ("; or set policy.pcie.acs to direct-nic" if direct else ""),
        )


def _incapable(facts: Facts, asked: Sequence[Bits]) -> Iterator[Finding]:
    devices = {device.address: device for device in facts.pci}
    for one in asked:
        acs = devices[one.bridge].acs
        lacking = one.value & ~number(() if acs is None else acs.capability)
        if lacking:
            yield Finding(
                "pcie.acs",
                "warning",
                one.bridge,
                f"the bridge is not capable of {worded(lacking)}, which {policy_words(one)} needs",
                "this slot cannot serve that scenario: use another, or name the bridge in policy.pcie.acs_except",
            )


def policy_words(one: Bits) -> str:
    """The pattern as a person would look it up."""
    return f"pattern {one.pattern}"


def _after_boot(facts: Facts, asked: Sequence[Bits]) -> Iterator[Finding]:
    devices = {device.address: device for device in facts.pci}
    other = [one for one in asked if _differs(devices[one.bridge], one)]
    if not other:
        return
    names = ", ".join(one.bridge for one in other)
    told = "config_acs=" in (facts.host.cmdline or "")
    if told:
        yield Finding(
            "pcie.acs",
            "error",
            names,
            f"the kernel was told at boot and {len(other)} of {len(asked)} bridges are not so",
            "kernels from 6.11 until the fix of pci=config_acs= (2025) take the first entry only, older ones none: "
            "update the kernel, or set policy.pcie.acs_by to register",
        )
    else:
        yield Finding(
            "pcie.acs",
            "warning",
            names,
            f"{len(other)} of {len(asked)} bridges get their bits from the kernel's command line, at the next boot",
            "have the slice kernel written (playbooks/install.yml), then reboot",
        )


def _differs(device: PciDevice, one: Bits) -> bool:
    control = number(() if device.acs is None else device.acs.control)
    return bool((control ^ one.value) & one.mask & JUDGED)


def _groups(facts: Facts, tree: Tree, gpus: Sequence[str]) -> Iterator[Finding]:
    devices: Mapping[str, PciDevice] = {device.address: device for device in facts.pci}
    for gpu in gpus:
        above = {bridge.address for bridge in tree.bridges(gpu)}
        for one in data_direct(facts):
            if not above & {bridge.address for bridge in tree.bridges(one.address)}:
                continue
            group = devices[gpu].iommu_group
            if None not in (group, one.iommu_group) and group != one.iommu_group:
                yield Finding(
                    "pcie.iommu_group",
                    "warning",
                    f"{gpu}, {one.address}",
                    f"the GPU is in IOMMU group {group}, its function for direct data in {one.iommu_group}: they have "
                    "to share one",
                    "groups are formed at boot from ACS: set policy.pcie.acs_by to kernel, reboot, look again",
                )
