"""Twins: one machine that stands in the inventory under two names would be tuned twice, and counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from railwright.node.model import Facts, Finding

from .form import Member


def twin_findings(nodes: Mapping[str, tuple[Member, Facts]]) -> Iterator[Finding]:
    """A finding for each node that shares most of its devices with an earlier one. nodes: name to (member, its form).

    A single equal address is no twin: a card that moved, or an address that was copied by hand.
    """
    first: dict[str, str] = {}
    for name, (member, facts) in nodes.items():
        marks = _marks(member, facts)
        shared = Counter(first[mark] for mark in marks if mark in first)
        for mark in marks:
            first.setdefault(mark, name)
        if not shared:
            continue
        twin, count = shared.most_common(1)[0]
        if 2 * count > len(marks):
            example = next(mark for mark in sorted(marks) if first[mark] == twin)
            yield Finding(
                "fleet.one_machine",
                "error",
                name,
                f"is the machine {twin}: {count} of its {len(marks)} devices are the same, {example} for one",
                "take one of the two names out of the inventory, or correct its address",
            )


def _marks(member: Member, facts: Facts) -> frozenset[str]:
    """What no other machine has: UUIDs of GPUs, GUIDs of NICs, the MACs of those that have none."""
    told = [("GPU", gpu.uuid) for gpu in facts.gpus]
    for nic in facts.nics:
        if nic.address is not None:
            told.append(("NIC", nic.guid if nic.guid is not None and nic.guid.strip("0:") else nic.mac))
    values = ((kind, member.value(value)) for kind, value in told)
    return frozenset(f"{kind} {value}" for kind, value in values if value is not None and value.strip("0x:"))
