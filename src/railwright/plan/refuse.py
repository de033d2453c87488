"""What cannot be planned: each refusal names the device and the way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from ..node.model import Conflict, Facts, Finding, Nic, Policy
from .cards import Card
from .distance import BESIDE, Distances
from .gpus import display_gpus
from .graph import Graph
from .roles import Roles
from .spoken import unmatched
from .tree import Tree

_OPEN_THE_TREE = (
    "read the PCI tree where it is visible (`railwright plan` on the hypervisor's or bare-metal host's facts), "
    "or give the virtual machine a tree (one pxb-pcie for each NUMA node, one switch for each GPU and its NIC), "
    "or name every rail in policy.nics, such as {match: mlx5_0, role: rail, rail: 0}"
)
# Facts that decide where a device hangs; a conflict about anything else is a finding.
_PLACE_FIELDS = ("parent", "address", "numa", "path", "paths")


def before_roles(facts: Facts, policy: Policy) -> Iterator[Finding]:
    """Machines that need no closer look."""
    # Where an image is made there is none, and the policy says so.
    if not facts.gpus and policy.expect.gpus != 0:
        yield Finding(
            "gpus.none",
            "error",
            "gpus",
            "no GPU is visible",
            "check seating, BIOS (above 4G decoding) and `lspci -d 10de:`; a skeleton file or a VM without devices "
            "cannot be planned",
        )
    yield from _twice(facts)
    yield from _contradictions(facts)
    for entry in unmatched(facts, policy):
        names = ", ".join(nic.name for nic in facts.nics) or "none"
        who, mend = "the policy", "correct policy.nics"
        if entry.source is not None:
            who, mend = f"the {entry.source}", "take it out of policy.presets if the node is no such machine"
        yield Finding(
            "policy.nics",
            "error",
            entry.match,
            f"{who} names {entry.match}, and this node has no such NIC",
            f"{mend}, or find out why the NIC is gone; NICs seen: {names}",
        )


def _twice(facts: Facts) -> Iterator[Finding]:
    devices = Counter(device.address for device in facts.pci)
    endpoints = Counter(gpu.address for gpu in facts.gpus if gpu.address is not None)
    endpoints.update(_nic_devices(facts))
    for address, count in sorted((devices | endpoints).items()):
        if count > 1:
            names = [gpu.name for gpu in facts.gpus if gpu.address == address]
            names += [nic.name for nic in facts.nics if nic.address == address]
            yield Finding(
                "pci.twice",
                "error",
                address,
                f"{count} devices have this PCI address: {', '.join(names) or 'bridges'}",
                "the witness mixes two machines or two moments: take it again",
            )


def _nic_devices(facts: Facts) -> list[str]:
    """The address of each NIC, once for each device: ports of one device share theirs."""
    # A NCCL dump shows all functions of a card as nets of its first one.
    apart = any(witness.kind == "sysfs" for witness in facts.witnesses)
    devices = {(nic.address, nic.rdma if apart else None) for nic in facts.nics if nic.address is not None}
    with_rdma = {address for address, rdma in devices if rdma is not None}
    # A port's netdev that the reader did not join to its RDMA device is no second device.
    return [address for address, rdma in devices if rdma is not None or address not in with_rdma]


def _contradictions(facts: Facts) -> Iterator[Finding]:
    for conflict in facts.conflicts:
        if is_about_place(conflict, facts):
            said = "; ".join(f"{claim.witness} says {claim.value}" for claim in conflict.claims)
            yield Finding(
                "facts.conflict",
                "error",
                conflict.where,
                f"witnesses contradict each other: {said}",
                "leave out the witness that is stale or from another machine, and plan again",
            )


def is_about_place(conflict: Conflict, facts: Facts) -> bool:
    """Whether a conflict concerns where a device hangs: a field of its place, or a pair of devices in a matrix."""
    last = conflict.where.rsplit(".", 1)[-1].lower()
    if any(word == last for word in _PLACE_FIELDS):
        return True
    names = {gpu.name for gpu in facts.gpus} | {nic.name for nic in facts.nics}
    pair = any(conflict.where == f"{a}-{b}" for a in names if conflict.where.startswith(a) for b in names)
    return pair and not all(claim.value.startswith("NV") for claim in conflict.claims)


def missing(
    facts: Facts, policy: Policy, roles: Roles, tree: Tree, distances: Distances
) -> Iterator[Finding]:
    """Fewer devices than the policy expects; a GPU that only drives a screen does not count."""
    gpus, rails = policy.expect.gpus, policy.expect.rails
    display = display_gpus(facts, tree)
    found = [gpu for gpu in facts.gpus if gpu.name not in display]
    if gpus is not None and found and len(found) < gpus:
        seen = ", ".join(f"{gpu.name} {gpu.address or ''}".strip() for gpu in found)
        yield Finding(
            "expect.gpus",
            "error",
            ", ".join([*_lonely(facts, roles, tree, distances), *_slot_gaps(facts, tree)]) or "gpus",
            f"{len(found)} of {gpus} GPUs are visible: {seen}",
            "power the node off fully, reseat the missing GPU and look at the BMC's log; "
            "if the node really has fewer, correct policy.expect.gpus",
        )
    if rails is not None and len(roles.rails) < rails:
        seen = ", ".join(card.name for card in roles.rails) or "none"
        lost = [f"{port.nic.name} ({port.because})" for port in roles.ports if port.role == "down"]
        yield Finding(
            "expect.rails",
            "error",
            ", ".join(port.nic.name for port in roles.ports if port.role == "down") or "nics",
            f"{len(roles.rails)} of {rails} rail NICs are usable: {seen}"
            + (f"; not up: {', '.join(lost)}" if lost else ""),
            "bring the missing links up (cable, transceiver, switch port, subnet manager) and plan again; "
            "if the node really has fewer rails, correct policy.expect.rails",
        )


def gaps(facts: Facts, policy: Policy, roles: Roles, tree: Tree, distances: Distances) -> Iterator[Finding]:
    """Places where a GPU seems to be missing, in a node of which nobody has said how many it has."""
    if policy.expect.gpus is not None or not facts.gpus:
        return
    lonely, slots = _lonely(facts, roles, tree, distances), _slot_gaps(facts, tree)
    if lonely or slots:
        yield Finding(
            "gpus.gap",
            "warning" if slots else "info",
            ", ".join([*lonely, *slots]),
            f"{len(facts.gpus)} GPUs are visible, and a place like theirs is empty",
            "is a GPU missing? say how many there should be in policy.expect.gpus",
        )


def _lonely(facts: Facts, roles: Roles, tree: Tree, distances: Distances) -> list[str]:
    """Places beside a NIC like the rails' that has no GPU."""
    return [f"beside {nic.name}" for nic in _without_gpu(facts, roles, tree, distances)]


def _without_gpu(facts: Facts, roles: Roles, tree: Tree, distances: Distances) -> list[Nic]:
    usual = {_seat(port, tree) for card in roles.rails for port in card.ports}
    return [
        port.nic
        for port in roles.ports
        if _seat(port.nic, tree) in usual - {None}
        and not any(distances.word(gpu, port.nic) in BESIDE for gpu in facts.gpus)
    ]


def rails_without_gpu(facts: Facts, roles: Roles, tree: Tree, distances: Distances) -> list[Nic]:
    """NICs whose GPU is missing: each sits as the rails do, and as many GPU slots between taken ones are empty."""
    alone = _without_gpu(facts, roles, tree, distances)
    return alone if len(alone) == len(_slot_gaps(facts, tree)) else []


def _seat(nic: Nic, tree: Tree) -> Optional[tuple[Optional[str], Optional[str], int]]:
    """Model of a NIC and how deep it sits; None at the CPU itself, where no GPU shares a switch with it."""
    device = tree.device(nic.address) if nic.address is not None else None
    ascent = tree.ascent(nic.address) if nic.address is not None else None
    if device is None or ascent is None or len(ascent.steps) < 2:
        return None
    return device.vendor, device.device, len(ascent.steps)


def _slot_gaps(facts: Facts, tree: Tree) -> list[str]:
    """Numbers left out between the GPUs' slots, where all of them have one."""
    numbers = set()
    for gpu in facts.gpus:
        slot = tree.slot(gpu.address) if gpu.address is not None else None
        if slot is not None and slot.isdigit():
            numbers.add(int(slot))
    if not numbers or len(numbers) < len(facts.gpus):
        return []
    return [f"slot {number}" for number in range(min(numbers), max(numbers)) if number not in numbers]


def hidden_tree(facts: Facts, graph: Graph, rails: Sequence[int], distances: Distances) -> Iterator[Finding]:
    """GPUs and NICs of which the witness does not tell who is near whom."""
    gpus = range(len(graph.gpus))
    lost = [graph.gpus[gpu].name for gpu in gpus if not any((gpu, card) in graph.routes for card in rails)]
    # With one NIC there is no choice to make, unless others show that this witness could know the place.
    if lost and (len(rails) > 1 or (rails and len(lost) < len(graph.gpus))):
        yield Finding(
            "topology.hidden",
            "error",
            ", ".join(lost),
            "the witness does not show how these GPUs reach the NICs",
            _OPEN_THE_TREE,
        )
        return
    suspect = distances.matrix or facts.host.virtual not in (None, "", "container")
    if (
        suspect
        and len(graph.gpus) > 1
        and len(rails) > 1
        and _all_alike(graph, rails, whole=distances.matrix)
    ):
        names = ", ".join(graph.cards[card].name for card in rails)
        yield Finding(
            "topology.hidden",
            "error",
            names,
            "every GPU meets several of these NICs only in the CPU, as in a virtual machine whose PCI tree is flat: "
            "which NIC sits on which GPU's switch cannot be told",
            _OPEN_THE_TREE,
        )


def _all_alike(graph: Graph, rails: Sequence[int], whole: bool) -> bool:
    """Every GPU is PHB to several NICs. whole: to all of them (a matrix of bare metal shows NODE or SYS somewhere)."""
    for gpu in range(len(graph.gpus)):
        words = [graph.level(gpu, card) for card in rails]
        if any(word in BESIDE or word == "P2C" for word in words):
            return False
        if words.count("PHB") < (len(rails) if whole else 2):
            return False
    return True


def unplannable(roles: Roles, policy: Policy, cards: Sequence[Card]) -> Iterator[Finding]:
    """Rail numbers that cannot hold."""
    for card in cards:
        numbers = {roles.numbers[port.name] for port in card.ports if port.name in roles.numbers}
        if len(numbers) > 1:
            yield Finding(
                "policy.rails",
                "error",
                card.name,
                f"ports of one card are to be rails {sorted(numbers)}",
                "all ports of a card are one rail: give them one number in policy.nics",
            )
