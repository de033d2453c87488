"""The upper bound with several NICs for each GPU, and with relay over NVLink (what NCCL calls PXN).

With traffic divisible, rate r is possible for all GPUs at once if and only if a flow of r from every GPU fits the
capacities. The largest r is the minimum over all cuts of (capacity of the cut) / (GPUs behind it); it is found by
Newton's method on fractions: try a rate, take the minimum cut, which gives the next lower one, until the flow fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Optional

from .constants import nvlink_mbps
from .flow import UNLIMITED, Network, max_flow, source_side
from .graph import Graph

# (tail node, head node, Mb/s or None for no limit)
_Pipe = tuple[int, int, Optional[int]]


def split_rate(graph: Graph, cards: Sequence[int]) -> Optional[Fraction]:
    """Mb/s for each GPU, all sending, over any number of these cards; None when capacities are not known."""
    gpus = [gpu for gpu in range(len(graph.gpus)) if any((gpu, card) in graph.routes for card in cards)]
    if not gpus or len(gpus) < len(graph.gpus) or not graph.rated:
        return None
    source, sink, switch = graph.size, graph.size + 1, graph.size + 2
    pipes: list[_Pipe] = [
        (arc.tail, arc.head, None if arc.lane is None else graph.lanes[arc.lane].mbps) for arc in graph.arcs
    ]
    pipes += [(graph.card_node[card], sink, None) for card in cards]
    pipes += _relays(graph, switch)
    rate = Fraction(sum(graph.cards[card].mbps for card in cards), len(gpus))
    while True:
        network = Network(graph.size + 3)
        for gpu in gpus:
            network.arc(source, graph.gpu_node[gpu], rate.numerator)
        for tail, head, mbps in pipes:
            network.arc(tail, head, UNLIMITED if mbps is None else mbps * rate.denominator)
        if max_flow(network, source, sink) == rate.numerator * len(gpus):
            return rate
        near = source_side(network, source)
        behind = [gpu for gpu in gpus if graph.gpu_node[gpu] in near]
        cut = sum(mbps or 0 for tail, head, mbps in pipes if tail in near and head not in near)
        rate = Fraction(cut, len(behind))


def switched_rate(graph: Graph) -> Optional[Fraction]:
    """What every GPU can send into NVSwitches at least, Mb/s; None where one has none, or its rate is not known."""
    switch = graph.size
    rates = {tail: mbps for tail, head, mbps in _relays(graph, switch) if head == switch}
    found = [rates.get(node) for node in graph.gpu_node]
    known = [Fraction(rate) for rate in found if rate is not None]
    return min(known) if known and len(known) == len(found) else None


def _relays(graph: Graph, switch: int) -> list[_Pipe]:
    """NVLinks between GPUs, direct or through NVSwitches, where their rate is known."""
    place = {name: index for index, gpu in enumerate(graph.gpus) for name in (gpu.name, gpu.address) if name}
    pipes: list[_Pipe] = []
    for index, gpu in enumerate(graph.gpus):
        each = nvlink_mbps(gpu.sm)
        if each is None:
            continue
        here = graph.gpu_node[index]
        switched = 0
        for link in gpu.nvlinks or ():
            if link.target in place:
                pipes.append((here, graph.gpu_node[place[link.target]], link.count * each))
            else:
                switched += link.count
        if switched:
            pipes += [(here, switch, switched * each), (switch, here, switched * each)]
    return pipes
