"""What the facts of a node show to be wrong with it, whatever the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Optional

from ..node.model import Facts, Finding, Gpu, Link, PciDevice, Policy, sort_key
from . import nccl
from .binding import Binding
from .distance import BESIDE
from .nvlink import nvlinks
from .refuse import is_about_place
from .tree import Tree

# Bits that send peer traffic up to the root complex (PCIe 6.0, 7.7.11.2). Source validation alone does not.
_REDIRECTS = ("ReqRedir", "CmpltRedir", "UpstreamFwd")


def of_facts(facts: Facts, tree: Tree, policy: Policy) -> Iterator[Finding]:
    """Findings that need no assignment."""
    yield from _incomplete(facts)
    yield from _nvlinks(facts, tree)
    yield from _acs(facts, tree, policy)
    yield from _widths(facts, tree)
    yield from _numa(facts)
    yield from _idle_links(facts, tree, policy)
    for conflict in facts.conflicts:
        if not is_about_place(conflict, facts):
            said = "; ".join(f"{claim.witness} says {claim.value}" for claim in conflict.claims)
            yield Finding(
                "facts.conflict",
                "warning",
                conflict.where,
                said,
                "find out which is right; the plan uses the first",
            )
    for note in facts.notes:
        yield Finding(
            "facts.note", "info", facts.witnesses[0].source if facts.witnesses else "facts", note, ""
        )


def _incomplete(facts: Facts) -> Iterator[Finding]:
    cut = [gpu.name for gpu in facts.gpus if gpu.partial]
    if cut or not facts.complete:
        rows = f"missing rows: {', '.join(cut)}" if cut else "some rows are missing"
        yield Finding(
            "facts.incomplete",
            "warning",
            ", ".join(cut) or "facts",
            f"the witness is incomplete, {rows}; only GPUs with whole rows have a rail",
            "take it again, whole: `nvidia-smi topo -m > topo.txt`",
        )


def _nvlinks(facts: Facts, tree: Tree) -> Iterator[Finding]:
    groups: dict[object, list[Gpu]] = {}
    for gpu in facts.gpus:
        device = tree.device(gpu.address) if gpu.address is not None else None
        amd = device is not None and device.vendor == "0x1002"
        # xGMI meshes are uneven by design; NVLinks are equal on GPUs of one board.
        if gpu.nvlinks is not None and not gpu.partial and not amd:
            groups.setdefault((gpu.model, gpu.sm), []).append(gpu)
    for gpus in groups.values():
        counts = [nvlinks(gpu) or 0 for gpu in gpus]
        usual = max(counts)
        for gpu, count in zip(gpus, counts):
            if count < usual:
                yield Finding(
                    "gpu.nvlinks",
                    "error",
                    gpu.name,
                    f"{gpu.name} has {count} NVLinks where its peers have {usual}",
                    "see `nvidia-smi nvlink -s`, the fabric manager and dmesg (Xid 74); take the node out of service",
                )


def _path_bridges(facts: Facts, tree: Tree) -> list[PciDevice]:
    """Bridges above GPUs and RDMA NICs, each once, in PCI order."""
    found: dict[str, PciDevice] = {}
    addresses = [gpu.address for gpu in facts.gpus] + [
        nic.address for nic in facts.nics if nic.rdma is not None
    ]
    for address in addresses:
        for bridge in tree.bridges(address) if address is not None else ():
            found[bridge.address] = bridge
    return [found[address] for address in sorted(found, key=sort_key)]


def _acs(facts: Facts, tree: Tree, policy: Policy) -> Iterator[Finding]:
    # Where the policy says what it should be, the slice `pcie` sets it and its findings tell of it.
    if facts.host.virtual != "" or policy.pcie.acs is not None:
        return
    redirecting = [
        bridge
        for bridge in _path_bridges(facts, tree)
        if bridge.acs and set(_REDIRECTS) & set(bridge.acs.control)
    ]
    if redirecting:
        first = redirecting[0]
        bits = ", ".join(bit for bit in _REDIRECTS if first.acs is not None and bit in first.acs.control)
        yield Finding(
            "pcie.acs",
            "warning",
            ", ".join(bridge.address for bridge in redirecting),
            f"ACS redirects peer traffic through the root complex on {len(redirecting)} bridges above GPUs and NICs "
            f"({first.address}: {bits}): GPUDirect is slow or hangs",
            f"look with `setpci -s {first.address} ECAP_ACS+6.w`; switch ACS off in the BIOS, or set policy.pcie.acs "
            "to bare-metal to have the bits cleared on each of these bridges now and at every boot",
        )


def _widths(facts: Facts, tree: Tree) -> Iterator[Finding]:
    """Links of GPUs, RDMA NICs and the switches above them that lost lanes.

    A function tells of the link to the port above it. Root and downstream ports tell of the link below them, which is
    the same link seen from its other end, so only the lower end is asked.
    """
    names = {gpu.address: gpu.name for gpu in facts.gpus if gpu.address is not None}
    for nic in facts.nics:
        if nic.address is not None and nic.rdma is not None:
            names.setdefault(nic.address, nic.name)
    told: set[str] = set()
    for address, name in names.items():
        device = tree.device(address)
        switches = [bridge for bridge in tree.bridges(address) if bridge.port == "upstream"]
        for place in (device, *switches) if device is not None else ():
            port = tree.parent(place.address)
            width = _lost_width(place.link, port.link if port is not None else None)
            if width is None or place.address in told:
                continue
            told.add(place.address)
            whose = name if place is device else f"a switch above {name}"
            yield Finding(
                "pcie.link_width",
                "error" if place is device else "warning",
                place.address,
                f"the link of {whose} runs at x{width[0]}, and both ends can do x{width[1]}",
                "reseat the card or riser; if it stays, the slot or card is faulty",
            )


def _idle_links(facts: Facts, tree: Tree, policy: Policy) -> Iterator[Finding]:
    """NCCL takes the GPU's link as it runs at start-up since 2.30.7 (src/graph/xml.cc:667,705)."""
    if not nccl.reads_current_links(policy):
        return
    idle = []
    for gpu in facts.gpus:
        device = tree.device(gpu.address) if gpu.address is not None else None
        link = None if device is None else device.link
        if (
            link is not None
            and link.speed is not None
            and link.max_speed is not None
            and link.speed < link.max_speed
            and gpu.address not in policy.nccl.loaded_links
        ):
            idle.append((gpu.name, link.speed, link.max_speed))
    if idle:
        name, now, able = idle[0]
        yield Finding(
            "nccl.idle_links",
            "info",
            ", ".join(name for name, _, _ in idle),
            f"{name}'s link idles at {now:g} of {able:g} GT/s, and NCCL {policy.nccl.version} counts on the speed "
            "that it sees at start-up",
            "let jobs touch every GPU before ncclCommInitRank, or have a topology file written: read the links while a "
            "job runs, and put them into policy.nccl.loaded_links",
        )


def _lost_width(link: Link, port: Optional[Link]) -> Optional[tuple[int, int]]:
    """(width now, width that both ends can do) where the first is less. Speed is no fault: links idle at Gen1."""
    if link.width is None or link.max_width is None:
        return None
    able = link.max_width if port is None or port.max_width is None else min(link.max_width, port.max_width)
    return (link.width, able) if link.width < able else None


def _numa(facts: Facts) -> Iterator[Finding]:
    nodes = [node for node in facts.numa if node.cpus]
    if facts.host.virtual != "" or len(nodes) < 2:
        return
    lost = [gpu.name for gpu in facts.gpus if gpu.address is not None and gpu.numa is None]
    lost += [nic.name for nic in facts.nics if nic.rdma and nic.address is not None and nic.numa is None]
    if lost:
        yield Finding(
            "numa.unknown",
            "warning",
            ", ".join(lost),
            f"the firmware names no NUMA node for {', '.join(lost)} on a machine with {len(nodes)} of them",
            "update the BIOS; until then cores for these devices are chosen from the whole machine",
        )


def of_plan(binding: Binding) -> Iterator[Finding]:
    """Findings on who uses what: rails on another NUMA node, and choices that distances alone do not settle."""
    graph = binding.graph
    yield from _wrong_nodes(binding)
    for index, ways in enumerate(binding.ways):
        card = ways[0][0] if ways else None
        if card is None or graph.level(index, card) != "SYS":
            continue
        gpu, nic = graph.gpus[index], graph.cards[card]
        where = "" if gpu.numa is None or nic.numa is None else f" (node {gpu.numa} to node {nic.numa})"
        yield Finding(
            "bindings.cross_numa",
            "warning",
            gpu.name,
            f"{gpu.name} reaches its rail {nic.name} only across NUMA nodes{where}",
            "move a NIC to that node's slots if the chassis allows; else expect this GPU to be slower",
        )

    if not graph.rated:
        yield from _open_choices(binding)


def _wrong_nodes(binding: Binding) -> Iterator[Finding]:
    """GPU and NIC below one switch hang on one NUMA node, whatever the firmware says."""
    graph = binding.graph
    for index, ways in enumerate(binding.ways):
        for card, _ in ways:
            gpu, nic = graph.gpus[index], graph.cards[card]
            apart = gpu.numa is not None and nic.numa is not None and gpu.numa != nic.numa
            if apart and graph.level(index, card) in BESIDE:
                yield Finding(
                    "numa.mismatch",
                    "warning",
                    f"{gpu.name}, {nic.name}",
                    f"{gpu.name} and {nic.name} share a switch, and the firmware puts them on nodes {gpu.numa} and "
                    f"{nic.numa}",
                    "update the BIOS; until then cores and interrupts of one of them are on the wrong node",
                )


def _open_choices(binding: Binding) -> Iterator[Finding]:
    """NICs that stay unused although they are as near as the one that was taken: a matrix cannot tell them apart."""
    graph, used = binding.graph, set(binding.used)
    for index, ways in enumerate(binding.ways):
        for card, _ in ways:
            equal = [
                other
                for other in binding.rails
                if other not in used and graph.level(index, other) == graph.level(index, card)
            ]
            if equal:
                names = ", ".join(graph.cards[other].name for other in (card, *equal))
                yield Finding(
                    "nics.choice",
                    "info",
                    graph.gpus[index].name,
                    f"{names} are equally near to {graph.gpus[index].name}; which of them is its rail this witness "
                    "cannot tell",
                    f"which one is cabled as the rail? name it in policy.nics: {{match: {graph.cards[card].name}, "
                    "role: rail}, or give the node's facts",
                )


def accepted(findings: Iterable[Finding], policy: Policy) -> tuple[Finding, ...]:
    """Findings with the policy's reasons for bearing them; errors first, each only once."""
    order = {"error": 0, "warning": 1, "info": 2}
    marked = [replace(finding, accepted=policy.accept.get(finding.code)) for finding in findings]
    unique = list(dict.fromkeys(marked))
    return tuple(sorted(unique, key=lambda finding: order[finding.severity]))
