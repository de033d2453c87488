"""One typed graph of a machine: GPUs on one side, cards on the other, and every link that traffic between them loads.

A lane is one direction of one link. GPUs send: their traffic climbs the PCI tree, turns at the lowest common switch or
at a NUMA node, crosses to another NUMA node by at most one direct hop, descends, and leaves by the card's ports. The
other direction mirrors it, so one direction tells the rate. A matrix knows only how far apart devices are: there each
pair has one lane without a capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from ..node.model import Facts, Gpu
from .cards import Card
from .constants import LOCAL_GBYTES, MBPS_PER_GBYTE, cpu_link_mbps
from .distance import LEVELS, path_word, turning_point
from .order import device_key
from .tree import Ascent, Step, Tree, numa_name

# How many links the way has at least, where only the level is known.
_LEVEL_HOPS = {"PIX": 3, "PXB": 4, "P2C": 4, "PHB": 5, "NODE": 6, "SYS": 7}


@dataclass(frozen=True)
class Lane:
    """One direction of a link. kind: pcie, cpu, c2c, port or pair. mbps: None where the witness knows no capacity."""

    tail: str
    head: str
    kind: str
    mbps: Optional[int]
    believed: bool
    level: Optional[str] = None

    @property
    def name(self) -> str:
        return f"{self.tail} -> {self.head}"

    @property
    def crossings(self) -> int:
        return 1 if self.kind == "cpu" or self.level == "SYS" else 0

    @property
    def hops(self) -> int:
        return 1 if self.level is None else _LEVEL_HOPS[self.level] - 1


@dataclass(frozen=True)
class Arc:
    """A step of the flow network: nodes by number; lane: its index, or None for a free turn."""

    tail: int
    head: int
    lane: Optional[int]


@dataclass(frozen=True)
class Route:
    """One way from a GPU to a card: lanes in order, NCCL's path word, rate of the narrowest lane."""

    lanes: tuple[int, ...]
    level: str
    mbps: Optional[int]


class Graph:
    """Built by `build`. gpus and cards by index; `gpu_node` and `card_node` are their nodes in the flow network.

    ways: all routes of a GPU and a card. routes: the one that NCCL would take.
    """

    def __init__(self, gpus: Sequence[Gpu], cards: Sequence[Card]) -> None:
        self.gpus = tuple(gpus)
        self.cards = tuple(cards)
        self.lanes: list[Lane] = []
        self.arcs: list[Arc] = []
        self.routes: dict[tuple[int, int], Route] = {}
        self.ways: dict[tuple[int, int], list[Route]] = {}
        self._nodes: dict[tuple[str, str], int] = {}
        self._lane_of: dict[tuple[str, str, str], int] = {}
        self._arc_of: set[tuple[int, int, Optional[int]]] = set()
        self.gpu_node = [self.node("gpu", str(index)) for index in range(len(gpus))]
        self.card_node = [self.node("card", str(index)) for index in range(len(cards))]

    @property
    def size(self) -> int:
        return len(self._nodes)

    @property
    def rated(self) -> bool:
        """Whether the links have capacities."""
        return all(lane.mbps is not None for lane in self.lanes)

    def node(self, side: str, name: str) -> int:
        return self._nodes.setdefault((side, name), len(self._nodes))

    def lane(
        self,
        tail: str,
        head: str,
        kind: str,
        mbps: Optional[int],
        believed: bool,
        level: Optional[str] = None,
    ) -> int:
        """The index of this lane, which is made where there is none between these ends."""
        key = (tail, head, kind)
        index = self._lane_of.get(key)
        if index is None:
            index = self._lane_of[key] = len(self.lanes)
            self.lanes.append(Lane(tail, head, kind, mbps, believed, level))
        return index

    def arc(self, tail: int, head: int, lane: Optional[int]) -> None:
        if (tail, head, lane) not in self._arc_of:
            self._arc_of.add((tail, head, lane))
            self.arcs.append(Arc(tail, head, lane))

    def level(self, gpu: int, card: int) -> Optional[str]:
        """NCCL's word for the distance; None when there is no known way."""
        route = self.routes.get((gpu, card))
        return None if route is None else route.level

    def offer(self, gpu: int, card: int, route: Route) -> None:
        """Note a way; `routes` holds the best: lower type, then higher rate, then fewer hops (NCCL paths.cc:98)."""
        self.ways.setdefault((gpu, card), []).append(route)
        held = self.routes.get((gpu, card))
        if held is None or _worth(route) < _worth(held):
            self.routes[gpu, card] = route


def _worth(route: Route) -> tuple[int, int, int]:
    return (LEVELS.index(route.level), -(route.mbps or 0), len(route.lanes))


def build(facts: Facts, gpus: Sequence[Gpu], cards: Sequence[Card], tree: Tree) -> Graph:
    """The graph of these GPUs (in index order) and cards (in PCI order)."""
    graph = Graph(gpus, cards)
    if facts.paths and not facts.pci:
        _add_pairs(graph, facts)
    else:
        _add_tree(graph, facts, tree)
    return graph


def _add_pairs(graph: Graph, facts: Facts) -> None:
    level_of: dict[tuple[str, str], str] = {}
    for path in facts.paths:
        level_of[path.a, path.b] = level_of[path.b, path.a] = path.level
    for g, gpu in enumerate(graph.gpus):
        for c, card in enumerate(graph.cards):
            levels = [
                level_of[gpu.name, port.name] for port in card.ports if (gpu.name, port.name) in level_of
            ]
            if not levels:
                continue
            level = min(levels, key=LEVELS.index)
            lane = graph.lane(gpu.name, card.name, "pair", None, True, level)
            port = graph.lane(card.name, f"port {card.name}", "port", None, True)
            graph.arc(graph.gpu_node[g], graph.node("nic", str(c)), lane)
            graph.arc(graph.node("nic", str(c)), graph.card_node[c], port)
            graph.offer(g, c, Route((lane, port), level, None))


def _add_tree(graph: Graph, facts: Facts, tree: Tree) -> None:
    crossing = cpu_link_mbps(facts.cpus)
    ways_up = [_gpu_ascents(gpu, tree) for gpu in graph.gpus]
    ways_down = [_card_ascents(card, tree) for card in graph.cards]
    for g, ups in enumerate(ways_up):
        for c, downs in enumerate(ways_down):
            for up in ups:
                for down in downs:
                    _add_route(graph, g, c, up, down, crossing)


@dataclass(frozen=True)
class _Way:
    """An ascent, and whether it leads over NVLink-C2C."""

    ascent: Ascent
    c2c: bool = False


def _gpu_ascents(gpu: Gpu, tree: Tree) -> list[_Way]:
    found = tree.ascent(gpu.address) if gpu.address is not None else None
    ways = [_Way(found)] if found is not None else []
    if gpu.c2c is not None:
        numa = found.numa if found is not None else gpu.numa
        rate = gpu.c2c.count * gpu.c2c.mbytes * MBPS_PER_GBYTE // 1000
        step = Step(gpu.address or gpu.name, numa_name(numa), rate, True)
        ways.append(_Way(Ascent((step,), numa), c2c=True))
    return ways


def _card_ascents(card: Card, tree: Tree) -> list[_Way]:
    ways = [tree.ascent(function) for function in card.functions]
    found = [_Way(way) for way in ways if way is not None]
    if not found and not card.functions and card.numa is not None:
        # NCCL hangs a NIC without a PCI function on its CPU, without a limit (topo.cc:769).
        step = Step(card.name, numa_name(card.numa), LOCAL_GBYTES * MBPS_PER_GBYTE, False)
        found.append(_Way(Ascent((step,), card.numa)))
    return found


def _add_route(graph: Graph, g: int, c: int, up: _Way, down: _Way, crossing: Optional[int]) -> None:
    rising, falling = turning_point(up.ascent, down.ascent)
    kind = "c2c" if up.c2c else "pcie"
    lanes: list[int] = []
    here = graph.gpu_node[g]
    for step in rising:
        lanes.append(graph.lane(step.lower, step.upper, kind, step.mbps, step.believed))
        above = graph.node("up", step.upper)
        graph.arc(here, above, lanes[-1])
        here = above
    turn, landing = rising[-1].upper, falling[-1].upper
    if turn != landing:
        rate = LOCAL_GBYTES * MBPS_PER_GBYTE if crossing is None else crossing
        lanes.append(graph.lane(turn, landing, "cpu", rate, crossing is not None))
        graph.arc(here, graph.node("down", landing), lanes[-1])
    else:
        graph.arc(here, graph.node("down", landing), None)
    here = graph.node("down", landing)
    for step in reversed(falling):
        lanes.append(graph.lane(step.upper, step.lower, "pcie", step.mbps, step.believed))
        below = graph.node("down", step.lower)
        graph.arc(here, below, lanes[-1])
        here = below
    card = graph.cards[c]
    exit_ = card.functions[0] if card.functions else card.name
    lanes.append(graph.lane(exit_, f"port {card.name}", "port", card.mbps, card.rate_known))
    graph.arc(here, graph.card_node[c], lanes[-1])
    narrowest = min(graph.lanes[lane].mbps or 0 for lane in lanes)
    graph.offer(g, c, Route(tuple(lanes), path_word(rising, falling, up.c2c), narrowest))


def nccl_order(facts: Facts, gpus: Sequence[Gpu], cards: Sequence[Card], tree: Tree) -> list[int]:
    """Cards in the order in which NCCL lists them.

    NCCL adds GPUs, then NICs, each with the switches above it (xml.cc), and reads the tree back depth first, so a NIC
    is listed where the first device of its branch stands.
    """
    children: dict[str, list[str]] = {}
    ranked = sorted(range(len(cards)), key=lambda index: cards[index].key)

    def add(address: Optional[str]) -> None:
        ascent = tree.ascent(address) if address is not None else None
        if ascent is None:
            return
        above = "system"
        for step in reversed(ascent.steps):
            if step.upper not in children.setdefault(above, []):
                children[above].append(step.upper)
            above = step.upper
        if ascent.steps[0].lower not in children.setdefault(above, []):
            children[above].append(ascent.steps[0].lower)

    for gpu in sorted(gpus, key=lambda gpu: device_key(gpu.address, gpu.name)):
        add(gpu.address)
    for index in ranked:
        add(cards[index].functions[0] if cards[index].functions else None)
    place: dict[str, int] = {}
    stack = ["system"]
    while stack:
        name = stack.pop()
        place[name] = len(place)
        stack.extend(reversed(children.get(name, [])))
    last = len(place)
    return sorted(ranked, key=lambda index: place.get((cards[index].functions or ("",))[0], last))
