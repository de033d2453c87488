"""The rails over the nodes: which NIC is rail k on which node, and who differs from the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from railwright.node.model import Facts, Plan

_CARRYING = ("rail", "second-port")


@dataclass(frozen=True)
class Stop:
    """A rail on one node. nic None: the node has no such rail. more: further ports of the same rail.

    odd: not what more than half of the planned nodes of the same kind of machine have.
    """

    nic: str | None
    pci: str | None = None
    more: tuple[str, ...] = ()
    odd: bool = False


def rail_table(plans: dict[str, Plan], kinds: dict[str, str]) -> dict[int, dict[str, Stop]]:
    """Rail to node to stop, rails in order, nodes in the order of `plans`, the planned ones.

    kinds: node to its kind of machine. Only machines of one kind can be told to differ.
    """
    stops = {name: _stops(plan) for name, plan in plans.items()}
    rails = sorted({rail for found in stops.values() for rail in found})
    table = {}
    for rail in rails:
        row = {name: found.get(rail, Stop(None)) for name, found in stops.items()}
        groups: dict[str, dict[str, Stop]] = {}
        for name, stop in row.items():
            groups.setdefault(kinds[name], {})[name] = stop
        marked = {name: stop for group in groups.values() for name, stop in _marked(group).items()}
        table[rail] = {name: marked[name] for name in row}
    return table


def rails_of(plan: Plan) -> tuple[int, ...]:
    """Numbers of the rails that carry something."""
    return tuple(sorted(_stops(plan)))


def kind_of(facts: Facts | None) -> str:
    """What a machine is called: its product, else its GPUs."""
    if facts is None:
        return "machine unknown"
    models = sorted({gpu.model for gpu in facts.gpus if gpu.model})
    return facts.host.product or (
        f"{len(facts.gpus)} × {' and '.join(models)}" if models else "product unknown"
    )


def _stops(plan: Plan) -> dict[int, Stop]:
    stops: dict[int, Stop] = {}
    # The rail NIC itself stands for its rail, further ports of its card come after it.
    for nic in sorted(plan.nics, key=lambda nic: nic.role != "rail"):
        # A spare NIC may keep the number of a rail whose GPU is gone: nothing runs on it.
        if nic.rail is None or nic.role not in _CARRYING:
            continue
        known = stops.get(nic.rail)
        if known is None:
            stops[nic.rail] = Stop(nic.name, nic.pci)
        else:
            stops[nic.rail] = Stop(known.nic, known.pci, (*known.more, nic.name))
    return stops


def _marked(row: dict[str, Stop]) -> dict[str, Stop]:
    counts = Counter((stop.nic, stop.pci, stop.more) for stop in row.values())
    usual, number = counts.most_common(1)[0]
    settled = number * 2 > len(row)
    return {
        name: Stop(stop.nic, stop.pci, stop.more, not settled or (stop.nic, stop.pci, stop.more) != usual)
        for name, stop in row.items()
    }
