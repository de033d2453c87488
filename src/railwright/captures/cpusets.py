"""CPUs of NUMA nodes as a witness states them, kept only where they can be true."""

from __future__ import annotations

from collections.abc import Iterable

from railwright.node.model import NumaNode, parse_cpulist


def disjoint(nodes: Iterable[NumaNode], where: str) -> tuple[tuple[NumaNode, ...], tuple[str, ...]]:
    """The nodes that share no CPU with another one, in order, and a note that names those that do.

    A CPU belongs to one node. Where two nodes claim it, neither list is to be believed, and both are left out.
    """
    listed = sorted(nodes, key=lambda node: node.id)
    owner: dict[int, int] = {}
    doubted: set[int] = set()
    for node in listed:
        for cpu in parse_cpulist(node.cpus, where):
            if owner.setdefault(cpu, node.id) != node.id:
                doubted |= {owner[cpu], node.id}
    names = ", ".join(str(node) for node in sorted(doubted))
    notes = (f"NUMA nodes {names} claim the same CPUs; which are theirs is not known",) if doubted else ()
    return tuple(node for node in listed if node.id not in doubted), notes
