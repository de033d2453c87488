"""What simpler rules would pick on the same graph, pairing by index and the nearest NIC, and what any choice gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Optional

from .distance import LEVELS
from .graph import Graph
from .order import natural

# For each GPU the cards among which it divides its traffic evenly.
Choice = dict[int, list[int]]
# By GPU and card the GPU whose way it takes, which it reaches over NVLink (NCCL's PXN). NVLinks count as no limit.
Via = Mapping[tuple[int, int], int]
_DIRECT: Via = {}


def by_index(graph: Graph, cards: Sequence[int]) -> Choice:
    """GPU k uses the k-th NIC in the order of names (mlx5_2 before mlx5_10), from the start again when they run out."""
    ordered = sorted(cards, key=lambda card: natural(graph.cards[card].name))
    pairs = {gpu: ordered[gpu % len(ordered)] for gpu in range(len(graph.gpus))} if ordered else {}
    return {gpu: [card] for gpu, card in pairs.items() if (gpu, card) in graph.routes}


def nearest(graph: Graph, cards: Sequence[int]) -> Choice:
    """Each GPU uses its nearest NIC, the first in PCI order on ties: what scripts over `nvidia-smi topo -m` do."""
    ordered = sorted(cards, key=lambda card: graph.cards[card].key)
    choice: Choice = {}
    for gpu in range(len(graph.gpus)):
        near = [card for card in ordered if (gpu, card) in graph.routes]
        if near:
            choice[gpu] = [min(near, key=lambda card: LEVELS.index(graph.routes[gpu, card].level))]
    return choice


def evaluate(
    graph: Graph, choice: Choice, believed_only: bool = False, via: Via = _DIRECT
) -> Optional[Fraction]:
    """Rate of each GPU (Mb/s) when all send at once, each dividing its traffic evenly; None when it is not known.

    believed_only: leave out links whose stated rate cannot be true.
    """
    if not graph.rated or len(choice) < len(graph.gpus):
        return None
    return min(_rates(graph, choice, believed_only, via).values(), default=None)


def worst(
    graph: Graph, choice: Choice, believed_only: bool = False, via: Via = _DIRECT
) -> tuple[int, Fraction]:
    """The first GPU that gets least under this choice, with what it gets."""
    rates = _rates(graph, choice, believed_only, via)
    gpu = min(rates, key=lambda gpu: (rates[gpu], gpu))
    return gpu, rates[gpu]


def _rates(graph: Graph, choice: Choice, believed_only: bool, via: Via) -> dict[int, Fraction]:
    ways = {
        gpu: [graph.routes[via.get((gpu, card), gpu), card].lanes for card in cards]
        for gpu, cards in choice.items()
    }
    # In shares that every GPU's traffic has a whole number of: arithmetic with fractions is slow.
    whole = lcm(*(len(own) for own in ways.values()))
    load: dict[int, int] = {}
    for own in ways.values():
        for lanes in own:
            for lane in lanes:
                load[lane] = load.get(lane, 0) + whole // len(own)
    rates: dict[int, Fraction] = {}
    for gpu, own in ways.items():
        limits = {
            (graph.lanes[lane].mbps or 0, load[lane])
            for lanes in own
            for lane in lanes
            if graph.lanes[lane].believed or not believed_only
        }
        if limits:
            rates[gpu] = min(Fraction(mbps * whole, shares) for mbps, shares in limits)
    return rates
