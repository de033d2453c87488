"""The rails over the nodes: which NIC is rail k on which node, and who differs from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from railwright.node.model import Facts, Plan

_CARRYING = ("rail", "second-port")


@dataclass(frozen=True)
class Stop:
    """A rail on one node. nic None: the node has no such rail. more: further ports of the same rail.

    odd: not at the PCI address at which more than half of the planned nodes of the same kind of machine have it.
    renamed: at that address, but not under the name that more than half have: the rail is right all the same.
    """

    nic: str | None
    pci: str | None = None
    more: tuple[str, ...] = ()
    odd: bool = False
    renamed: bool = False


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
    usual_place, usual_name = _usual(row, _place), _usual(row, _name)
    return {
        name: replace(
            stop,
            odd=_place(stop) != usual_place,
            renamed=_place(stop) == usual_place and _name(stop) != usual_name,
        )
        for name, stop in row.items()
    }


def _usual(row: dict[str, Stop], aspect: Callable[[Stop], object]) -> object:
    """What more than half of the stops have; None, which no stop has, where nothing is that usual."""
    value, number = Counter(map(aspect, row.values())).most_common(1)[0]
    return value if number * 2 > len(row) else None


def _place(stop: Stop) -> tuple[object, ...]:
    """Which NIC it is. A kernel's name for it is no part of that, except where a witness shows no address."""
    return (stop.pci, len(stop.more)) if stop.pci is not None else _name(stop)


def _name(stop: Stop) -> tuple[object, ...]:
    return (stop.nic, stop.more)
