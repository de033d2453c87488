"""The slice `pcie`: registers of rail NICs and of the bridges above them, and what is wrong with the ways between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ..node.model import Facts, Finding, Nic, PciDevice, Policy, Slice
from . import acs
from .tree import Tree

Entry = dict[str, Any]
# What NVIDIA's and Oracle's tools set on NICs (nic-configuration-operator; oci-hpc).
READ_REQUEST = 4096
_EXPRESS, _CONTROL, _WORD = "CAP_EXP", 8, 2
# Device Control (PCIe 6.0, 7.5.3.4): read request size in bits 14 to 12, relaxed ordering in bit 4.
_READ_MASK, _ORDER_MASK = 0x7000, 0x0010
_GEN4 = 16.0
# A link that idles is trained down to the first or second generation, which is no fault.
_IDLE = 5.0
_OWN_DOMAINS = ("DMA", "DMA-FQ")
# The smallest window into its memory that a GPU has. Where the kernel found no place for it, it may have been
# forgotten whole (Linux drivers/pci/setup-bus.c, reset_resource), so that only those of the registers are left.
_LEAST_MEMORY = 1 << 28
# Without remapped interrupts x86 reaches APIC numbers up to 255 only (x2APIC).
_MOST_WITHOUT_REMAPPING = 255


@dataclass(frozen=True)
class Survey:
    """What PCIe comes to. slice: the registers; None where the policy asks for none, or the kernel takes no write.

    acs_argument: what the kernel's command line should say of ACS; None where there is nothing to say.
    """

    slice: Optional[Slice] = None
    acs_argument: Optional[str] = None
    findings: tuple[Finding, ...] = ()


def survey(facts: Facts, policy: Policy, tree: Tree, gpus: Sequence[str], rails: Sequence[Nic]) -> Survey:
    """Registers that the policy asks for, and what is wrong with PCIe. gpus: PCI addresses."""
    nics = functions(rails)
    bits = acs.wanted(facts, policy, tree, gpus, nics)
    entries = _entries(policy, bits, rails)
    by_kernel = policy.pcie.acs_by == "kernel" and policy.manage.get("pcie", True)
    argument = acs.kernel_argument(bits) if by_kernel else None
    findings = [*acs.findings(facts, policy, tree, gpus, nics), *_untaken(facts, entries, argument)]
    if facts.host.virtual == "":
        own = _own_functions(rails)
        devices = [device for device in facts.pci if device.address in own]
        findings += _read_requests(policy, devices)
        findings += _orderings(policy, devices)
        findings += _tags(facts, devices)
        findings += _speeds(tree, devices)
        findings += _iommu(facts, [*gpus, *nics])
    findings += _bars(facts, gpus)
    because = (
        "GPUs and NICs below one switch speak to each other there, and NICs read in large requests; a boot and a reset "
        "forget both"
    )
    written = bool(entries) and not _locked(facts)
    return Survey(Slice("runtime", tuple(entries), because) if written else None, argument, tuple(findings))


def with_boot_arguments(kernel: Optional[Slice], facts: Facts, argument: Optional[str]) -> Optional[Slice]:
    """The slice `kernel` with what the policy wants of ACS on the command line, where the boot loader is known."""
    if argument is None or not _has_boot_loader(facts):
        return kernel
    entry = {"kind": "boot_arguments", "name": "acs", "arguments": [argument], "reboot": True}
    if kernel is not None:
        return replace(kernel, entries=(*kernel.entries, entry))
    return Slice("persistent", (entry,), "the kernel sets ACS at boot, before it forms the IOMMU's groups")


def _has_boot_loader(facts: Facts) -> bool:
    return facts.software is not None and facts.software.boot_loader is not None


def functions(rails: Sequence[Nic]) -> tuple[str, ...]:
    """PCI functions of these ports, each once: a port may be served by two."""
    found = [address for nic in rails for address in (nic.functions or (nic.address,)) if address is not None]
    return tuple(dict.fromkeys(found))


def _own_functions(rails: Sequence[Nic]) -> tuple[str, ...]:
    """A virtual function has no such bits of its own (SR-IOV 1.1, 3.5.4)."""
    return functions([nic for nic in rails if not nic.physical_function])


def _untaken(facts: Facts, entries: Sequence[Entry], argument: Optional[str]) -> Iterator[Finding]:
    """What this node does not let be written."""
    if argument is not None and not _has_boot_loader(facts):
        yield Finding(
            "pcie.boot_loader",
            "warning",
            "policy.pcie.acs_by",
            f"no boot loader that we know is on this node, so the kernel is not told: {argument}",
            "put it on the command line where the boot loader is configured; quote it, since it holds ;",
        )
    if _locked(facts) and entries:
        yield Finding(
            "pcie.lockdown",
            "warning",
            "pcie",
            f"the kernel is locked down ({facts.pcie.lockdown}): it takes no write to PCI configuration space, so "
            "nothing of policy.pcie is written",
            "have the firmware set it (BIOS); ACS also by the kernel: policy.pcie.acs_by: kernel",
        )


def _entries(policy: Policy, bits: Sequence[acs.Bits], rails: Sequence[Nic]) -> list[Entry]:
    wish = policy.pcie
    own = _own_functions(rails)
    entries = []
    if wish.read_request is not None:
        code = wish.read_request.bit_length() - 8  # 128 bytes are 0
        entries += [_express(address, _READ_MASK, code << 12) for address in own]
    if wish.relaxed_ordering is not None:
        entries += [_express(address, _ORDER_MASK, _ORDER_MASK * wish.relaxed_ordering) for address in own]
    if wish.acs_by == "register":
        entries += [_register(one.bridge, "ECAP_ACS", 6, one.mask, one.value) for one in bits]
    return entries


def _express(address: str, mask: int, value: int) -> Entry:
    return _register(address, _EXPRESS, _CONTROL, mask, value)


def _register(address: str, capability: str, offset: int, mask: int, value: int) -> Entry:
    return {
        "kind": "pci_register",
        "device": address,
        "capability": capability,
        "offset": offset,
        "width": _WORD,
        "mask": f"{mask:04x}",
        "value": f"{value:04x}",
    }


def _locked(facts: Facts) -> bool:
    return facts.pcie.lockdown in ("integrity", "confidentiality")


def _read_requests(policy: Policy, devices: Sequence[PciDevice]) -> Iterator[Finding]:
    small = [device for device in devices if device.mrrs is not None and device.mrrs < READ_REQUEST]
    if small and policy.pcie.read_request is None:
        yield Finding(
            "pcie.read_request",
            "warning",
            ", ".join(device.address for device in small),
            f"{len(small)} rail NICs read in requests of {min(device.mrrs or 0 for device in small)} bytes, where "
            f"{READ_REQUEST} are usual: they may not reach their line's rate",
            f"set policy.pcie.read_request to {READ_REQUEST} to have it written now and at every boot",
        )


def _orderings(policy: Policy, devices: Sequence[PciDevice]) -> Iterator[Finding]:
    strict = [device.address for device in devices if device.relaxed_ordering is False]
    if strict and policy.pcie.relaxed_ordering is None:
        yield Finding(
            "pcie.relaxed_ordering",
            "warning",
            ", ".join(strict),
            "relaxed ordering is off in these NICs' Device Control, so that what NCCL asks for has no effect",
            "set policy.pcie.relaxed_ordering to true, or look for it in the BIOS",
        )


def _tags(facts: Facts, devices: Sequence[PciDevice]) -> Iterator[Finding]:
    told = {function.address: function for function in facts.pcie.functions}
    few = []
    for device in devices:
        function = told.get(device.address)
        if function is None or (device.link.speed or 0) < _GEN4:
            continue
        if function.extended_tags is False or (function.ten_bit_capable and function.ten_bit_tags is False):
            few.append(device.address)
    if few:
        yield Finding(
            "pcie.tags",
            "info",
            ", ".join(few),
            "these NICs may have fewer requests under way than they could (ExtTag or 10BitTagReq is off)",
            "it is the firmware's to set: look for 10-bit tags in the BIOS",
        )


def _speeds(tree: Tree, devices: Sequence[PciDevice]) -> Iterator[Finding]:
    for device in devices:
        port = tree.port(device.address)
        able = [
            one.link.max_speed for one in (device, port) if one is not None and one.link.max_speed is not None
        ]
        now = device.link.speed
        if now is not None and able and _IDLE < now < min(able):
            yield Finding(
                "pcie.link_speed",
                "warning",
                device.address,
                f"the link runs at {now:g} GT/s, and both ends can do {min(able):g}; it does not idle at that",
                "look again under load; if it stays, reseat the card or look for a limit in the BIOS",
            )


def _iommu(facts: Facts, addresses: Sequence[str]) -> Iterator[Finding]:
    told = {function.address: function.iommu for function in facts.pcie.functions}
    translated = [address for address in addresses if told.get(address) in _OWN_DOMAINS]
    if translated:
        yield Finding(
            "pcie.iommu",
            "warning",
            ", ".join(translated),
            "the IOMMU translates these devices' addresses: peer traffic takes the way over the root complex",
            "boot with iommu=pt (policy.kernel.arguments); on arm64 iommu.passthrough=1",
        )
    cpus = sum(len(core.cpus) for core in facts.cpus.cores)
    if facts.host.iommu is False and facts.cpus.arch == "x86_64" and cpus > _MOST_WITHOUT_REMAPPING:
        yield Finding(
            "pcie.iommu",
            "warning",
            "iommu",
            f"the IOMMU is off on a machine with {cpus} CPUs: interrupts reach {_MOST_WITHOUT_REMAPPING} of them",
            "switch it on in the BIOS (VT-d, AMD-Vi) and boot with iommu=pt",
        )


def _bars(facts: Facts, gpus: Sequence[str]) -> Iterator[Finding]:
    """Windows without an address, and one that is smaller than those of the same GPUs."""
    kinds = {device.address: (device.vendor, device.device) for device in facts.pci}
    largest: dict[object, int] = {}
    sizes: dict[str, int] = {}
    for function in facts.pcie.functions:
        lost = [bar for bar in function.bars or () if not bar.placed]
        if lost and function.address in gpus:
            yield Finding(
                "pcie.bar",
                "error",
                function.address,
                f"the firmware found no place for {_size(max(bar.size for bar in lost))} of this GPU's memory: no "
                "driver can use it",
                "switch on Above 4G decoding and raise the size of high MMIO in the BIOS",
            )
        elif function.bars and function.address in gpus:
            sizes[function.address] = max(bar.size for bar in function.bars)
            if sizes[function.address] < _LEAST_MEMORY:
                yield Finding(
                    "pcie.bar",
                    "error",
                    function.address,
                    f"this GPU's largest window is {_size(sizes[function.address])}: its memory has none (BAR1 is 0M)",
                    "switch on Above 4G decoding and raise the size of high MMIO in the BIOS",
                )
                del sizes[function.address]
                continue
            kind = kinds.get(function.address)
            largest[kind] = max(largest.get(kind, 0), sizes[function.address])
    for address, size in sizes.items():
        if size < largest[kinds.get(address)]:
            yield Finding(
                "pcie.bar",
                "warning",
                address,
                f"this GPU shows {_size(size)} of its memory, others of its kind {_size(largest[kinds.get(address)])}",
                "compare the GPUs' firmware and the BIOS settings of their slots (resizable BAR, MMIO)",
            )


def _size(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if size >= 1 << power:
            return f"{size / (1 << power):g} {unit}"
    return f"{size} bytes"
