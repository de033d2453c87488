"""The rates of a plan and of simpler rules, the load of every link, and what it all means in one or two sentences."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Optional

from ..node.model import Bound, LoadedLink
from .assign import Assignment
from .binding import Binding, shares
from .constants import gbytes
from .graph import Graph
from .nccl_rule import by_nccl
from .rules import Choice, Via, by_index, evaluate, nearest, worst
from .split import split_rate, switched_rate
from .workloads import EVEN


def bound_of(binding: Binding, seen: Sequence[int], objective: str) -> Bound:
    """seen: cards that NCCL would find on its own, in its order of devices. objective: as in `assign`."""
    graph, found = binding.graph, binding.found
    if found.rate is None:
        return Bound(verdict=_verdict_without_rates(binding.rails))
    whole = all(card is not None for card in found.cards)
    alone, via = by_nccl(graph, seen)
    return Bound(
        per_gpu_gbytes=_optional(split_rate(graph, binding.rails)),
        achieved_gbytes=gbytes(found.rate) if whole else None,
        credible_gbytes=_optional(found.credible) if whole else None,
        optimal=_is_optimal(found),
        certificate=found.certificate,
        index_pairing_gbytes=_optional(evaluate(graph, by_index(graph, binding.rails))),
        nearest_gbytes=_optional(evaluate(graph, nearest(graph, binding.rails))),
        nccl_gbytes=_optional(evaluate(graph, alone, via=via)),
        verdict=_verdict(binding, seen, alone, via),
        alltoall_gbytes=_optional(_alltoall(binding)) if objective == EVEN else None,
        plan_gbytes=_optional(binding.rate) if whole else None,
    )


def _alltoall(binding: Binding) -> Optional[Fraction]:
    """Rate of each GPU with its traffic spread evenly over all rails.

    Over NVSwitches it goes to the GPU beside each rail's NIC first (NCCL's PXN), so rails carry what they carry anyway.
    """
    graph, gpus = binding.graph, range(len(binding.graph.gpus))
    if any((gpu, card) not in graph.routes for gpu in gpus for card in binding.used):
        return None
    direct = evaluate(graph, dict.fromkeys(gpus, binding.used))
    switched = switched_rate(graph)
    if direct is None or binding.rate is None or switched is None:
        return direct
    return max(direct, min(binding.rate, switched))


def _optional(rate: Optional[Fraction]) -> Optional[float]:
    return None if rate is None else gbytes(rate)


def _is_optimal(found: Assignment) -> bool:
    """Proven best: with the links as stated, or over the links that can be believed where some cannot."""
    if found.reached == found.rate:
        return True
    return found.credible is not None and found.credible != found.rate and found.believable == found.credible


def _verdict_without_rates(rails: Sequence[int]) -> str:
    if not rails:
        return "No NIC can be a rail: GPUs of this node reach other nodes by no rail."
    return (
        "This witness shows distances, not link rates: the pairing follows distance, and no rate is claimed."
    )


def _verdict(binding: Binding, seen: Sequence[int], alone: Choice, via: Via) -> str:
    """What NCCL does on its own, and, where that is less, what it does when it is told the rails.

    Rates are compared over the links that can be believed, where some cannot.
    """
    graph = binding.graph
    doubt = binding.found.credible != binding.found.rate
    ours = evaluate(graph, binding.choice, doubt)
    rate = evaluate(graph, alone, doubt, via)
    if rate is None or ours is None:
        return "What NCCL would choose on its own cannot be told."
    stray = next((gpu for gpu in alone if set(alone[gpu]) - set(binding.rails)), None)
    if stray is None and rate >= ours:
        return "NCCL already reaches this on its own: no change needed; the list below only keeps other NICs out."
    listed, relays = by_nccl(graph, [card for card in seen if card in binding.used])
    told = evaluate(graph, listed, doubt, relays)
    verdict = (
        _stray(binding, alone, via, stray) if stray is not None else _slow(graph, alone, via, ours, doubt)
    )
    if told is not None and told < ours:
        verdict += f" The exact list alone brings NCCL to {gbytes(told):.4g} of {gbytes(ours):.4g} GB/s."
    return verdict


def _stray(binding: Binding, choice: Choice, via: Via, gpu: int) -> str:
    graph = binding.graph
    card = next(card for card in choice[gpu] if card not in binding.rails)
    word = "PXN" if (gpu, card) in via else graph.level(gpu, card)
    return (
        f"NCCL on its own would put {graph.gpus[gpu].name} on {graph.cards[card].name}, which is no rail "
        f"({word}): the exact list below keeps it off."
    )


def _slow(graph: Graph, choice: Choice, via: Via, ours: Fraction, doubt: bool) -> str:
    gpu, gets = worst(graph, choice, doubt, via)
    names = " and ".join(graph.cards[card].name for card in choice[gpu])
    return (
        f"NCCL would put {graph.gpus[gpu].name} on {names}, which gives {gbytes(gets):.4g} instead of "
        f"{gbytes(ours):.4g} GB/s."
    )


def loaded_links(binding: Binding) -> tuple[LoadedLink, ...]:
    """Every link that the plan uses, with all GPUs sending at the rate that it reaches."""
    graph = binding.graph
    flows: dict[int, list[int]] = {}
    for gpu, ways in enumerate(binding.ways):
        for _, lanes in ways:
            for number in lanes:
                flows.setdefault(number, []).append(gpu)
    load_of = shares(binding.ways)
    result = []
    for index, users in flows.items():
        lane = graph.lanes[index]
        load = None if binding.rate is None or lane.mbps is None else binding.rate * load_of[index]
        result.append(
            LoadedLink(
                a=lane.tail,
                b=lane.head,
                kind=lane.kind,
                capacity_gbytes=None if lane.mbps is None else gbytes(lane.mbps),
                load_gbytes=_optional(load),
                flows=tuple(graph.gpus[gpu].name for gpu in dict.fromkeys(users)),
                believed=lane.believed,
                bottleneck=load is not None and load == lane.mbps and _matters(binding, index, users),
            )
        )
    return tuple(result)


def _matters(binding: Binding, lane: int, users: Sequence[int]) -> bool:
    """A full link is a bottleneck when several GPUs share it, or when the NICs behind it could do more."""
    if len(set(users)) > 1:
        return True
    cards = {card for card, lanes in binding.ways[users[0]] if lane in lanes}
    return sum(binding.graph.cards[card].mbps for card in cards) > (binding.graph.lanes[lane].mbps or 0)
