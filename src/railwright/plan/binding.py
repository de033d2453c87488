"""The decision: which cards each GPU uses, what rails they are, and what that gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Optional

from ..node.model import Facts
from .assign import Assignment, assign
from .cards import Card, group
from .closeness import Judged
from .distance import BESIDE, Distances
from .graph import Graph, build
from .rails import number_rails
from .refuse import rails_without_gpu
from .roles import Roles
from .tree import Tree

# One way of a GPU: its card and the lanes that lead there.
Way = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Binding:
    """rails: cards of the graph that may serve. ways: for each GPU its ways, the rail's first. number: rail of a card.

    found: the best assignment of one card to each GPU. rate: Mb/s of each GPU with all sending over all its ways, each
    dividing its traffic evenly; None where capacities are not known.
    """

    graph: Graph
    rails: tuple[int, ...]
    found: Assignment
    ways: tuple[tuple[Way, ...], ...]
    number: dict[int, Optional[int]]
    rate: Optional[Fraction]
    waiting: dict[str, int]

    def users(self, card: int) -> list[int]:
        """GPUs that use a card."""
        return [gpu for gpu, ways in enumerate(self.ways) if any(used == card for used, _ in ways)]

    @property
    def choice(self) -> dict[int, list[int]]:
        """For each GPU that has any the cards among which it divides its traffic."""
        return {gpu: [card for card, _ in ways] for gpu, ways in enumerate(self.ways) if ways}

    @property
    def used(self) -> list[int]:
        """Cards that serve, in rail order."""
        serving = [card for card in self.rails if self.users(card)]
        return sorted(serving, key=lambda card: (self.number[card] or 0, self.graph.cards[card].key))


def bind(
    facts: Facts,
    tree: Tree,
    distances: Distances,
    graph: Graph,
    rails: tuple[int, ...],
    roles: Roles,
    objective: str,
) -> Binding:
    """Decide. The policy's rail numbers come first among equals, then PCI order. objective: as in `assign`."""
    named = by_number(graph, rails, roles)
    preferred = named if named is not None else rails
    found = assign(graph, preferred, objective)
    if None in found.cards and (named is not None or len(rails) == 1):
        # The witness shows no way, and there is no choice to make.
        found = _paired_in_order(graph, preferred)
    ways, rate = _with_further_cards(graph, preferred, found)
    serves = {
        card: [gpu for gpu, own in enumerate(ways) if any(used == card for used, _ in own)] for card in rails
    }
    cards, places, waiting = _ideal(facts, tree, distances, graph, rails, roles, serves)
    numbers = number_rails(cards, places, roles.numbers)
    by_port = {port.name: numbers[place] for place, card in enumerate(cards) for port in card.ports}
    return Binding(
        graph=graph,
        rails=rails,
        found=found,
        ways=ways,
        number={card: by_port[graph.cards[card].name] for card in rails},
        rate=rate,
        waiting={name: number for name in waiting if (number := by_port[name]) is not None},
    )


def by_number(graph: Graph, rails: Sequence[int], roles: Roles) -> Optional[list[int]]:
    """Cards by rail number when the policy numbers every rail: then even a hidden tree can be planned."""
    numbered: list[tuple[int, int]] = []
    for card in rails:
        given = [roles.numbers[port.name] for port in graph.cards[card].ports if port.name in roles.numbers]
        if not given:
            return None
        numbered.append((given[0], card))
    return [card for _, card in sorted(numbered)] or None


def _paired_in_order(graph: Graph, ordered: Sequence[int]) -> Assignment:
    """GPUs take these cards in order, evenly."""
    count = len(graph.gpus)
    cards = tuple(ordered[gpu * len(ordered) // count] for gpu in range(count))
    return Assignment(cards, ((),) * count, None, None, None, None, None)


def _with_further_cards(
    graph: Graph, rails: Sequence[int], found: Assignment
) -> tuple[tuple[tuple[Way, ...], ...], Optional[Fraction]]:
    """Ways of each GPU. Where a whole further set of cards is as near and raises the rate, each GPU uses one more."""
    ways: list[tuple[Way, ...]] = [
        () if card is None else ((card, lanes),) for card, lanes in zip(found.cards, found.lanes)
    ]
    rate = found.reached
    while rate is not None and all(ways):
        taken = {card for own in ways for card, _ in own}
        more = assign(graph, [card for card in rails if card not in taken])
        if len(set(more.cards) - {None}) < len(graph.gpus) or not _as_near(graph, ways, more):
            break
        longer = [
            (*own, (card, lanes))
            for own, card, lanes in zip(ways, more.cards, more.lanes)
            if card is not None
        ]
        higher = rate_of(graph, longer)
        if higher is None or higher <= rate:
            break
        ways, rate = longer, higher
    return tuple(ways), rate


def _as_near(graph: Graph, ways: Sequence[tuple[Way, ...]], more: Assignment) -> bool:
    return all(
        card is not None and graph.level(gpu, card) == graph.level(gpu, ways[gpu][0][0])
        for gpu, card in enumerate(more.cards)
    )


def rate_of(graph: Graph, ways: Sequence[Sequence[Way]]) -> Optional[Fraction]:
    """Mb/s of each GPU when all send, each dividing its traffic evenly over its ways; None when nothing limits it."""
    rates = [Fraction(graph.lanes[lane].mbps or 0) / share for lane, share in shares(ways).items()]
    return min(rates, default=None) if graph.rated else None


def shares(ways: Sequence[Sequence[Way]]) -> dict[int, Fraction]:
    """GPUs' worth of traffic on each lane."""
    load: dict[int, Fraction] = {}
    for own in ways:
        for _, lanes in own:
            for lane in lanes:
                load[lane] = load.get(lane, Fraction(0)) + Fraction(1, len(own))
    return load


def _ideal(
    facts: Facts,
    tree: Tree,
    distances: Distances,
    graph: Graph,
    rails: Sequence[int],
    roles: Roles,
    serves: dict[int, list[int]],
) -> tuple[list[Card], dict[int, list[int]], list[str]]:
    """Cards to number, the GPUs that each serves, and ports that serve none today but keep their number.

    A rail that is down or whose GPU is missing must not shift the numbers of the others, or equal chassis would
    disagree. So where GPUs lack a card of their own and a port beside them is down, numbers follow the assignment with
    that port up; and a rail without its GPU keeps its place in PCI order.
    """
    cards = [graph.cards[card] for card in rails]
    orphans = list(group(rails_without_gpu(facts, roles, tree, distances)))
    if orphans:
        places = {place: serves[card] for place, card in enumerate(rails)}
        whole = [*cards, *orphans]
        for place, orphan in enumerate(orphans, start=len(cards)):
            later = [gpus for card, gpus in zip(cards, places.values()) if gpus and card.key > orphan.key]
            places[place] = [min(map(min, later), default=len(graph.gpus))]
        return whole, places, [port.name for orphan in orphans for port in orphan.ports]
    lost = _down_beside(graph, distances, roles)
    if not lost or not cards or len([card for card in rails if serves[card]]) >= len(graph.gpus):
        return cards, {place: serves[card] for place, card in enumerate(rails)}, []
    rate = max(port.rate or 0 for card in cards for port in card.ports) or None
    revived = list(group([replace(port.nic, rate=port.nic.rate or rate) for port in lost]))
    whole = [*cards, *revived]
    ideal = assign(build(facts, graph.gpus, whole, tree), range(len(whole)))
    places = {
        place: [gpu for gpu, card in enumerate(ideal.cards) if card == place] or serves_now
        for place, serves_now in enumerate([serves[card] for card in rails] + [[] for _ in revived])
    }
    waiting = [
        port.name for place in range(len(cards), len(whole)) if places[place] for port in whole[place].ports
    ]
    return whole, places, waiting


def _down_beside(graph: Graph, distances: Distances, roles: Roles) -> list[Judged]:
    """Ports that are down and share a switch with a GPU, or that the policy gives a rail number."""
    rail_ports = {port.name for card in roles.rails for port in card.ports}
    return [
        port
        for port in roles.ports
        if port.role == "down"
        and port.nic.name not in rail_ports
        and (port.number is not None or any(distances.word(gpu, port.nic) in BESIDE for gpu in graph.gpus))
    ]
