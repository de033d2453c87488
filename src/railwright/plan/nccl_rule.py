"""Which NICs NCCL 2.30.7 would use on its own, with its defaults: ncclTopoGetLocalNet after ncclTopoComputePaths.

The NICs of highest bandwidth count, the path type decides ties only. GPUs that share them start at different ones (bits
mirrored where their number is a power of two) and use ceil(NICs / GPUs) each, one channel after the other. Before that
NCCL replaces a GPU's way to a NIC by one over NVLink and the GPU beside the NIC (PXN), where that is wider or keeps off
the CPU, NIC by NIC, each replacement having its effect on the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .constants import nvlink_mbps
from .graph import Graph
from .rules import Choice, Via

# src/include/graph.h:117-154. NODE is nvidia-smi's word and PHB to NCCL.
_TYPE = {"PIX": 4, "PXB": 5, "P2C": 6, "PXN": 7, "PHB": 8, "NODE": 8, "SYS": 9}
_UNLIMITED = 1 << 62

# Mb/s of the narrowest link, and the path's type.
_Worth = tuple[int, int]


def by_nccl(graph: Graph, cards: Sequence[int]) -> tuple[Choice, Via]:
    """NCCL's choice (src/graph/topo.cc:1943-2076), and the GPUs that relay (src/graph/paths.cc:816-843).

    cards: those that NCCL is told of, in its order of devices.
    """
    rule = _Rule(graph, cards)
    rule.relay()
    picked = {gpu: rule.nets(gpu) for gpu in range(len(graph.gpus))}
    choice = {gpu: nets for gpu, nets in picked.items() if nets}
    via = {
        (gpu, card): rule.via[gpu, card]
        for gpu, nets in choice.items()
        for card in nets
        if (gpu, card) in rule.via
    }
    return choice, via


class _Rule:
    def __init__(self, graph: Graph, cards: Sequence[int]) -> None:
        self._graph = graph
        self._cards = cards
        self._own = {pair: (route.mbps or 0, _TYPE[route.level]) for pair, route in graph.routes.items()}
        # From GPU to NIC; from NIC to GPU nothing is relayed.
        self._worth = dict(self._own)
        self._locals: dict[int, list[int]] = {}
        self.via: dict[tuple[int, int], int] = {}

    def nets(self, gpu: int) -> list[int]:
        """NICs of a GPU in the order of its channels."""
        nets = _best({card: (gpu, card) for card in self._cards}, self._worth)
        if not nets:
            return []
        peers = self._local_gpus(nets[0])
        start = gpu % len(peers)
        if len(nets) & (len(nets) - 1) == 0:
            start = _mirrored(start, len(nets))
        each = -(-len(nets) // len(peers))
        return [nets[(start + channel) % len(nets)] for channel in range(each)]

    def relay(self) -> None:
        links = _nvlinks(self._graph)
        if not links:
            return
        for card in self._cards:
            peer = self._local_gpu(card)
            if peer is None or not self._close(peer, card):
                continue
            for gpu in range(len(self._graph.gpus)):
                if gpu != peer and (gpu, peer) in links:
                    self._replace(gpu, peer, card, links[gpu, peer])

    def _replace(self, gpu: int, peer: int, card: int, link: int) -> None:
        own, other = self._worth.get((gpu, card)), self._worth[peer, card]
        if own is not None and (other[0] > own[0] or own[1] > _TYPE["PXN"]):
            self._worth[gpu, card] = (min(link, other[0]), _TYPE["PXN"])
            self.via[gpu, card] = peer

    def _close(self, gpu: int, card: int) -> bool:
        """Whether a GPU may relay to a NIC: near enough for GPUDirect, as far as both are known to have it."""
        worth = self._worth.get((gpu, card))
        graph = self._graph
        direct = graph.gpus[gpu].gdr is not False and all(
            port.gdr is not False for port in graph.cards[card].ports
        )
        return worth is not None and worth[1] <= _TYPE["P2C"] and direct

    def _local_gpus(self, card: int) -> list[int]:
        if card not in self._locals:
            pairs = {gpu: (gpu, card) for gpu in range(len(self._graph.gpus))}
            self._locals[card] = _best(pairs, self._own)
        return self._locals[card]

    def _local_gpu(self, card: int) -> int | None:
        """ncclTopoGetLocalGpu: of the GPUs nearest to a NIC the first that has it on its first channels."""
        chosen = {gpu: self.nets(gpu) for gpu in self._local_gpus(card)}
        for channel in range(len(self._cards)):
            for gpu, nets in chosen.items():
                if nets and nets[channel % len(nets)] == card:
                    return gpu
        return None


def _best(pairs: Mapping[int, tuple[int, int]], worth: Mapping[tuple[int, int], _Worth]) -> list[int]:
    """ncclTopoGetLocal: keys of the pairs with the highest bandwidth, then the best type, in the given order."""
    known = {key: (-worth[pair][0], worth[pair][1]) for key, pair in pairs.items() if pair in worth}
    best = min(known.values(), default=None)
    return [key for key, value in known.items() if value == best]


def _nvlinks(graph: Graph) -> dict[tuple[int, int], int]:
    """Mb/s between GPUs over NVLink, direct or through NVSwitches; no limit where a link's rate is not known."""
    place = {name: index for index, gpu in enumerate(graph.gpus) for name in (gpu.name, gpu.address) if name}
    found: dict[tuple[int, int], int] = {}
    switched: dict[int, int] = {}
    for index, gpu in enumerate(graph.gpus):
        each = nvlink_mbps(gpu.sm)
        for link in gpu.nvlinks or ():
            rate = _UNLIMITED if each is None else link.count * each
            peer = place.get(link.target)
            if peer is None:
                switched[index] = switched.get(index, 0) + rate
            else:
                found[index, peer] = found.get((index, peer), 0) + rate
    for index, rate in switched.items():
        for peer, other in switched.items():
            if index != peer:
                found[index, peer] = max(found.get((index, peer), 0), min(rate, other))
    return found


def _mirrored(value: int, size: int) -> int:
    """The lowest bits of `value` in reverse order, `size` being a power of two (topo.h mirrorBits)."""
    mirrored = 0
    low, high = 1, size >> 1
    while low < size:
        if value & low:
            mirrored |= high
        low, high = low << 1, high >> 1
    return mirrored
