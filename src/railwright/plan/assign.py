"""Which GPU uses which card: the exact optimum, its certificate, and one answer among equals.

When all GPUs send at once at rate r, a lane of capacity c carries floor(c / r) of them. So r is possible if and only if
an integral flow of one unit from every GPU fits those whole capacities, and such a flow falls apart into one path for
each GPU. The best rate is therefore one of the values c / k (a lane, shared by k GPUs), and the minimum cut at the next
larger value proves that no assignment is better.

Among assignments of that rate the planner takes fewest crossings between NUMA nodes, then fewest hops, then the most
even use of cards, and then the first in PCI order. A workload may put the even use before the hops, or the shortest way
before the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Optional

from ..node.model import Certificate, CutLink
from .constants import gbytes
from .flow import UNLIMITED, Network, max_flow, min_cost_flow, source_side
from .graph import Graph
from .workloads import DISTANCE, EVEN, RATE

# More than the hops of any lane (a matrix's pair counts for several).
_MOST_HOPS = 8


@dataclass(frozen=True)
class Assignment:
    """cards: for each GPU its card, or None when no way leads from it to any. lanes: for each GPU the lanes it uses.

    rate: the best rate with the links as stated; credible: the best rate over the links that can be believed (None
    when no such link limits it). reached, believable: what this assignment gets of each. Rates are Mb/s, None where
    capacities are not known.
    """

    cards: tuple[Optional[int], ...]
    lanes: tuple[tuple[int, ...], ...]
    rate: Optional[Fraction]
    credible: Optional[Fraction]
    reached: Optional[Fraction]
    believable: Optional[Fraction]
    certificate: Optional[Certificate]


def assign(graph: Graph, allowed: Sequence[int], objective: str = RATE) -> Assignment:
    """The best assignment of the graph's GPUs to the allowed cards, the first ones preferred among equals.

    objective: RATE, EVEN (among equal rates the even use of cards counts before hops) or DISTANCE (the shortest way
    counts before the rate with all sending).
    """
    problem = _Problem(graph, allowed, objective)
    if not problem.gpus:
        nothing: tuple[Optional[int], ...] = (None,) * len(graph.gpus)
        return Assignment(nothing, ((),) * len(graph.gpus), None, None, None, None, None)
    if not graph.rated:
        cards, lanes = problem.settle([UNLIMITED] * len(graph.lanes))
        return Assignment(cards, lanes, None, None, None, None, None)
    everything = [True] * len(graph.lanes)
    believed = [lane.believed for lane in graph.lanes]
    rate = problem.best_rate(everything)
    if rate is None:
        raise AssertionError("GPUs that reach a card have a rate")
    credible = rate if all(believed) else problem.best_rate(believed)
    if objective == DISTANCE:
        cards, lanes = problem.settle([UNLIMITED] * len(graph.lanes))
    else:
        cards, lanes = problem.settle(problem.capacities_of(rate, credible, believed))
    certificate = problem.certificate(rate)
    reached, believable = shared_rate(graph, lanes), shared_rate(graph, lanes, believed_only=True)
    return Assignment(cards, lanes, rate, credible, reached, believable, certificate)


def shared_rate(
    graph: Graph, lanes: Sequence[Sequence[int]], believed_only: bool = False
) -> Optional[Fraction]:
    """Rate that each GPU gets when all send over these lanes and share them evenly; None when nothing limits it."""
    load: dict[int, int] = {}
    for way in lanes:
        for lane in way:
            load[lane] = load.get(lane, 0) + 1
    alike = {
        (graph.lanes[lane].mbps or 0, count)
        for lane, count in load.items()
        if graph.lanes[lane].mbps is not None and (graph.lanes[lane].believed or not believed_only)
    }
    return min((Fraction(mbps, count) for mbps, count in alike), default=None)


@dataclass(frozen=True)
class _Way:
    """A card and the lanes that lead to it."""

    card: int
    lanes: tuple[int, ...]


def _costs(gpus: int, lanes: int, objective: str) -> tuple[int, int, int]:
    """Costs of a crossing, of a hop, and of each GPU that a card serves already: each outweighs all that come after.

    In all GPUs' ways there are fewer than `most_hops` hops and gpus^2 times a GPU too many on a card.
    """
    most_hops, most_crowd = gpus * (lanes + 1) * _MOST_HOPS, gpus**2 + 1
    if objective == EVEN:
        return most_crowd * most_hops, 1, most_hops
    return most_crowd * most_hops, most_crowd, 1


class _Problem:
    """GPUs that reach an allowed card, as a flow network from one source to one sink."""

    def __init__(self, graph: Graph, allowed: Sequence[int], objective: str) -> None:
        self.graph = graph
        self.allowed = list(dict.fromkeys(allowed))
        self.gpus = [
            gpu for gpu in range(len(graph.gpus)) if any((gpu, card) in graph.routes for card in self.allowed)
        ]
        self._crossing, self._hop, self._crowd = _costs(len(self.gpus), len(graph.lanes), objective)
        self._source, self._sink = graph.size, graph.size + 1
        self._arcs = self._useful_arcs()

    def _useful_arcs(self) -> list[tuple[int, int, Optional[int]]]:
        """Arcs from which an allowed card can be reached."""
        into: dict[int, list[int]] = {}
        for index, arc in enumerate(self.graph.arcs):
            into.setdefault(arc.head, []).append(index)
        kept: set[int] = set()
        todo = [self.graph.card_node[card] for card in self.allowed]
        seen = set(todo)
        while todo:
            for index in into.get(todo.pop(), []):
                kept.add(index)
                tail = self.graph.arcs[index].tail
                if tail not in seen:
                    seen.add(tail)
                    todo.append(tail)
        return [(arc.tail, arc.head, arc.lane) for index, arc in enumerate(self.graph.arcs) if index in kept]

    def _lanes(self) -> list[int]:
        return sorted({lane for _, _, lane in self._arcs if lane is not None})

    # -- the best rate --

    def best_rate(self, counted: Sequence[bool]) -> Optional[Fraction]:
        """The largest rate at which every GPU has a path, minding only the counted lanes."""
        values = self._candidates(counted)
        low, high = 0, len(values)
        # Invariant: values[:low] all fit, values[high:] do not.
        while low < high:
            middle = (low + high) // 2
            if self._fits(values[middle], counted):
                low = middle + 1
            else:
                high = middle
        return values[low - 1] if low else None

    def _candidates(self, counted: Sequence[bool]) -> list[Fraction]:
        """All values c / k in ascending order."""
        capacities = {self.graph.lanes[lane].mbps or 0 for lane in self._lanes() if counted[lane]}
        return sorted(
            {Fraction(capacity, k) for capacity in capacities for k in range(1, len(self.gpus) + 1)}
        )

    def _fits(self, rate: Fraction, counted: Sequence[bool]) -> bool:
        capacity = [
            (lane.mbps or 0) * rate.denominator // rate.numerator if counts else UNLIMITED
            for lane, counts in zip(self.graph.lanes, counted)
        ]
        network = self._network(capacity)
        return max_flow(network, self._source, self._sink) == len(self.gpus)

    def _network(self, capacity: Sequence[int]) -> Network:
        network = Network(self.graph.size + 2)
        for gpu in self.gpus:
            network.arc(self._source, self.graph.gpu_node[gpu], 1)
        for tail, head, lane in self._arcs:
            network.arc(tail, head, UNLIMITED if lane is None else capacity[lane])
        for card in self.allowed:
            network.arc(self.graph.card_node[card], self._sink, UNLIMITED)
        return network

    def certificate(self, rate: Fraction) -> Optional[Certificate]:
        """The minimum cut at the next larger candidate; None when there is none."""
        counted = [True] * len(self.graph.lanes)
        larger = [value for value in self._candidates(counted) if value > rate]
        if not larger:
            return None
        capacity = [
            (lane.mbps or 0) * larger[0].denominator // larger[0].numerator for lane in self.graph.lanes
        ]
        network = self._network(capacity)
        max_flow(network, self._source, self._sink)
        near = source_side(network, self._source)
        behind = [gpu for gpu in self.gpus if self.graph.gpu_node[gpu] in near]
        cut = {
            lane for tail, head, lane in self._arcs if tail in near and head not in near and lane is not None
        }
        links = tuple(
            CutLink(self.graph.lanes[lane].name, gbytes(self.graph.lanes[lane].mbps or 0), capacity[lane])
            for lane in sorted(cut, key=lambda lane: self.graph.lanes[lane].name)
        )
        return Certificate(gbytes(larger[0]), len(behind), sum(link.admits for link in links), links)

    # -- one answer among the best --

    def capacities_of(
        self, rate: Fraction, credible: Optional[Fraction], believed: Sequence[bool]
    ) -> list[int]:
        """Whole capacities for the final choice: what can be believed first, then the rest as far as it goes.

        A bridge that states 2.5 GT/s x1 must not push a GPU to a far card, so believed links set the rate and links
        that are not believed only choose among what is left.
        """
        if credible is None or credible == rate:
            return [(lane.mbps or 0) * rate.denominator // rate.numerator for lane in self.graph.lanes]
        firm = [
            (lane.mbps or 0) * credible.denominator // credible.numerator if trust else UNLIMITED
            for lane, trust in zip(self.graph.lanes, believed)
        ]
        doubtful = [
            Fraction(self.graph.lanes[lane].mbps or 0, k)
            for lane in self._lanes()
            if not believed[lane]
            for k in range(1, len(self.gpus) + 1)
        ]
        best = firm
        values = sorted({value for value in doubtful if value <= credible})
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            tried = [
                whole if trust else (lane.mbps or 0) * values[middle].denominator // values[middle].numerator
                for lane, trust, whole in zip(self.graph.lanes, believed, firm)
            ]
            if max_flow(self._network(tried), self._source, self._sink) == len(self.gpus):
                low, best = middle + 1, tried
            else:
                high = middle
        return best

    def settle(
        self, capacity: Sequence[int]
    ) -> tuple[tuple[Optional[int], ...], tuple[tuple[int, ...], ...]]:
        """Cards and lanes of the first assignment in order among the cheapest that fit `capacity`."""
        fixed: dict[int, _Way] = {}
        best, chosen = self._cheapest(capacity, fixed)
        if best is None:
            raise AssertionError("capacities were chosen so that every GPU has a path")
        least = {gpu: min(self._weight(way.lanes) for way in self._ways(gpu)) for gpu in self.gpus}
        for gpu in self.gpus:
            # What the others cost at least, whatever this GPU takes.
            others = sum(least.values()) - least[gpu]
            for way in self._ways(gpu):
                if way == chosen[gpu]:
                    break
                if others + self._weight(way.lanes) > best or not all(
                    capacity[lane] > 0 for lane in way.lanes
                ):
                    continue
                cost, tried = self._cheapest(capacity, {**fixed, gpu: way})
                if cost == best:
                    chosen = tried
                    break
            fixed[gpu] = chosen[gpu]
            least[gpu] = self._weight(fixed[gpu].lanes)
        count = range(len(self.graph.gpus))
        return (
            tuple(chosen[gpu].card if gpu in chosen else None for gpu in count),
            tuple(chosen[gpu].lanes if gpu in chosen else () for gpu in count),
        )

    def _ways(self, gpu: int) -> list[_Way]:
        """All ways of this GPU, in the order in which the planner prefers among equals."""
        return [
            _Way(card, route.lanes) for card in self.allowed for route in self.graph.ways.get((gpu, card), ())
        ]

    def _weight(self, lanes: Sequence[int]) -> int:
        """Cost of a way by itself, without the crowding of its card."""
        return sum(
            self.graph.lanes[lane].crossings * self._crossing + self.graph.lanes[lane].hops * self._hop
            for lane in lanes
        )

    def _cheapest(
        self, capacity: Sequence[int], fixed: dict[int, _Way]
    ) -> tuple[Optional[int], dict[int, _Way]]:
        """Least cost and the way of each GPU; fixed GPUs keep theirs. The cost is None when they do not all fit."""
        left = list(capacity)
        taken: dict[int, int] = {}
        total = 0
        for way in fixed.values():
            total += self._weight(way.lanes) + taken.get(way.card, 0) * self._crowd
            taken[way.card] = taken.get(way.card, 0) + 1
            for lane in way.lanes:
                left[lane] -= 1
        if min(left, default=0) < 0:
            return None, {}
        free = [gpu for gpu in self.gpus if gpu not in fixed]
        network = Network(self.graph.size + 2)
        for gpu in free:
            network.arc(self._source, self.graph.gpu_node[gpu], 1)
        steps = [
            (
                lane,
                head,
                network.arc(tail, head, UNLIMITED, 0)
                if lane is None
                else network.arc(tail, head, left[lane], self._weight((lane,))),
            )
            for tail, head, lane in self._arcs
        ]
        for card in self.allowed:
            for crowd in range(taken.get(card, 0), taken.get(card, 0) + len(free)):
                network.arc(self.graph.card_node[card], self._sink, 1, crowd * self._crowd)
        cost = min_cost_flow(network, self._source, self._sink, len(free))
        if cost is None:
            return None, {}
        ways = dict(fixed)
        ways.update(self._walk(network, steps, free))
        return total + cost, ways

    def _walk(
        self, network: Network, steps: Sequence[tuple[Optional[int], int, int]], free: Sequence[int]
    ) -> dict[int, _Way]:
        """The flow taken apart into one way for each GPU."""
        carried = [network.carried(arc) for _, _, arc in steps]
        leaving: dict[int, list[int]] = {}
        for index, (tail, _, _) in enumerate(self._arcs):
            if carried[index]:
                leaving.setdefault(tail, []).append(index)
        card_at = {self.graph.card_node[card]: card for card in self.allowed}
        ways = {}
        for gpu in free:
            here, lanes = self.graph.gpu_node[gpu], []
            while here not in card_at:
                index = next(index for index in leaving[here] if carried[index])
                carried[index] -= 1
                lane, here, _ = steps[index]
                if lane is not None:
                    lanes.append(lane)
            ways[gpu] = _Way(card_at[here], tuple(lanes))
        return ways
