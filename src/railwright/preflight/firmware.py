"""What of the BIOS the system can see: memory windows, SR-IOV, NUMA, C-states, address translation, kernels' rivals."""

from __future__ import annotations

from collections.abc import Iterator

from ..node.check.answer import Answer
from ..node.model import Facts, PcieFunction, Policy
from .words import bad, dark, good, warned

# The window of a compute GPU spans its memory (H100: 128 GiB), with Above 4G decoding and resizable windows; without
# them it is 256 MiB or has no place at all.
_SMALL_WINDOW = 1 << 30
_COMPUTE = "0x0302"
_TRANSLATES = ("DMA", "DMA-FQ")
_DEEP_US = 10


def answers(facts: Facts, policy: Policy) -> Iterator[Answer]:
    """In the order of a BIOS menu."""
    yield from _gpus(facts, policy)
    yield from _windows(facts)
    yield from _vfs(facts)
    yield _numa(facts)
    yield from _idle(facts, policy)
    yield from _translation(facts)


def _gpus(facts: Facts, policy: Policy) -> Iterator[Answer]:
    count, wanted = len(facts.gpus), policy.expect.gpus
    if wanted is not None and count < wanted:
        remedy = "check seating, power and BIOS (Above 4G decoding), and `lspci -d 10de:`"
        yield bad("gpus", "gpus", f"{count} of {wanted} are on the bus", remedy)
    elif not count:
        yield warned(
            "gpus",
            "gpus",
            "none is on the bus",
            "on a node: check seating and BIOS; for an image this is right",
        )
    else:
        yield good("gpus", f"{count} on the bus, seen without a driver")


def _windows(facts: Facts) -> Iterator[Answer]:
    functions = {function.address: function for function in facts.pcie.functions}
    compute = {device.address for device in facts.pci if (device.class_code or "").startswith(_COMPUTE)}
    asked = [functions[gpu.address] for gpu in facts.gpus if gpu.address in functions]
    told = [function for function in asked if function.bars is not None]
    if not told:
        yield dark("above_4g", "the facts do not tell the GPUs' memory windows")
        return
    for function in told:
        yield _window(function, function.address in compute)


def _window(function: PcieFunction, computes: bool) -> Answer:
    bars = function.bars or ()
    largest = max((bar.size for bar in bars), default=0)
    lost = [f"BAR {bar.number} ({bar.size >> 20} MiB)" for bar in bars if not bar.placed]
    if lost:
        why = f"{', '.join(lost)} has no address: no driver can use this GPU"
        return bad(
            "above_4g", function.address, why, "BIOS: Above 4G decoding on, MMIO high size large enough"
        )
    if computes and largest < _SMALL_WINDOW:
        why = f"its largest window is {largest >> 20} MiB, where a compute GPU's spans its memory"
        return warned("above_4g", function.address, why, "BIOS: Above 4G decoding and resizable BAR on")
    return good("above_4g", f"{function.address}: {largest >> 20} MiB")


def _vfs(facts: Facts) -> Iterator[Answer]:
    vfs = None if facts.platform is None else facts.platform.vfs
    if not vfs:
        yield dark("sr_iov", "no NIC tells of virtual functions")
        return
    most = {address: count for address, count in vfs.items() if count}
    yield good(
        "sr_iov", f"{len(most)} of {len(vfs)} NICs can make virtual functions; nothing here needs them"
    )


def _numa(facts: Facts) -> Answer:
    sockets = {core.socket for core in facts.cpus.cores if core.socket is not None}
    nodes = [node for node in facts.numa if node.cpus]
    if not sockets or not nodes:
        return dark("numa", "the facts do not tell sockets and NUMA nodes")
    spoken = f"{len(sockets)} sockets, {len(nodes)} NUMA nodes with CPUs"
    if len(nodes) < len(sockets):
        why = f"{spoken}: memory is interleaved over the sockets, so no GPU is near any memory"
        return warned("numa", "NUMA", why, "BIOS: node interleaving off (NPS0 is such a setting on AMD)")
    each = len(nodes) // len(sockets)
    word = "one node a socket" if each == 1 else f"{each} nodes a socket (NPS{each} or SNC{each})"
    return good("numa", f"{spoken}: {word}")


def _idle(facts: Facts, policy: Policy) -> Iterator[Answer]:
    power = facts.power
    if power is None or not power.idle:
        yield dark("c_states", "no idle driver tells of C-states")
        return
    deep = [state for state in power.idle if state.latency > _DEEP_US]
    spoken = ", ".join(f"{state.name} {state.latency} us" for state in power.idle)
    if policy.workload == "inference-latency" and deep:
        why = f"{spoken}: waking from {deep[-1].name} takes longer than a message"
        yield warned(
            "c_states", "C-states", why, "the plan's power settings keep the CPUs from them, or the BIOS does"
        )
    else:
        yield good("c_states", spoken)


def _translation(facts: Facts) -> Iterator[Answer]:
    platform = facts.platform
    if platform is None or platform.iommu_table is None:
        yield dark("iommu", "the firmware's tables are not readable")
        return
    table = "the firmware describes an IOMMU" if platform.iommu_table else "no IOMMU (VT-d or AMD-Vi is off)"
    slow = [
        function.address
        for function in facts.pcie.functions
        if function.iommu is not None and function.iommu in _TRANSLATES
    ]
    if slow:
        why = (
            f"{table}, and addresses of {len(slow)} GPUs and NICs are translated: GPUDirect is slow or fails"
        )
        yield warned(
            "iommu", slow[0], why, "the kernel role sets iommu=pt; or switch VT-d off where nobody needs it"
        )
    else:
        yield good("iommu", f"{table}; nothing translates the addresses of GPUs and NICs")
