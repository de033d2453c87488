"""What simpler rules would pick on the same graph: pairing by index, the nearest NIC, and NCCL's own rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Optional

from .distance import LEVELS
from .graph import Graph
from .order import natural

# For each GPU the cards among which it divides its traffic evenly.
Choice = dict[int, list[int]]


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


def by_nccl(graph: Graph, cards: Sequence[int]) -> Choice:
    """NCCL 2.30.7 with defaults (src/graph/topo.cc:1943-2076). `cards` in NCCL's order of devices.

    The NICs of highest bandwidth count, the path type decides ties only. GPUs that share them start at different ones
    (bits mirrored where their number is a power of two) and use ceil(NICs / GPUs) each, one channel after the other.
    """
    choice: Choice = {}
    for gpu in range(len(graph.gpus)):
        nets = _local(graph, {card: (gpu, card) for card in cards})
        if not nets:
            continue
        peers = _local(graph, {other: (other, nets[0]) for other in range(len(graph.gpus))})
        start = gpu % len(peers)
        if len(nets) & (len(nets) - 1) == 0:
            start = _mirrored(start, len(nets))
        each = -(-len(nets) // len(peers))
        choice[gpu] = [nets[(start + channel) % len(nets)] for channel in range(each)]
    return choice


def _local(graph: Graph, pairs: Mapping[int, tuple[int, int]]) -> list[int]:
    """ncclTopoGetLocal: keys of the pairs with the highest bandwidth, then the best type, in the given order."""
    worth = {
        key: (-(graph.routes[pair].mbps or 0), LEVELS.index(graph.routes[pair].level))
        for key, pair in pairs.items()
        if pair in graph.routes
    }
    best = min(worth.values(), default=None)
    return [key for key, value in worth.items() if value == best]


def _mirrored(value: int, size: int) -> int:
    """The lowest bits of `value` in reverse order, `size` being a power of two (topo.h mirrorBits)."""
    mirrored = 0
    low, high = 1, size >> 1
    while low < size:
        if value & low:
            mirrored |= high
        low, high = low << 1, high >> 1
    return mirrored


def evaluate(graph: Graph, choice: Choice, believed_only: bool = False) -> Optional[Fraction]:
    """Rate of each GPU (Mb/s) when all send at once, each dividing its traffic evenly; None when it is not known.

    believed_only: leave out links whose stated rate cannot be true.
    """
    if not graph.rated or len(choice) < len(graph.gpus):
        return None
    return min(_rates(graph, choice, believed_only).values(), default=None)


def worst(graph: Graph, choice: Choice, believed_only: bool = False) -> tuple[int, Fraction]:
    """The first GPU that gets least under this choice, with what it gets."""
    rates = _rates(graph, choice, believed_only)
    gpu = min(rates, key=lambda gpu: (rates[gpu], gpu))
    return gpu, rates[gpu]


def _rates(graph: Graph, choice: Choice, believed_only: bool) -> dict[int, Fraction]:
    ways = {gpu: [graph.routes[gpu, card].lanes for card in cards] for gpu, cards in choice.items()}
    load: dict[int, Fraction] = {}
    for own in ways.values():
        for lanes in own:
            for lane in lanes:
                load[lane] = load.get(lane, Fraction(0)) + Fraction(1, len(own))
    rates: dict[int, Fraction] = {}
    for gpu, own in ways.items():
        limits = [
            Fraction(graph.lanes[lane].mbps or 0) / load[lane]
            for lanes in own
            for lane in lanes
            if graph.lanes[lane].believed or not believed_only
        ]
        if limits:
            rates[gpu] = min(limits)
    return rates
