"""Rail numbers over a fleet: the same number means the same seat on equal machines, and the same leaf everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from railwright.node.model import Expect, Facts, Nic, NicPolicy, Plan, Policy
from railwright.plan.spoken import answers

# Roles under which the planner gives a rail number: a rail, and one whose link or GPU is gone.
_NUMBERED = ("rail", "down", "spare")


@dataclass(frozen=True)
class Part:
    """What the fleet says of one node. rails: PCI address to rail number. gpus, lanes: the shape that is expected."""

    rails: tuple[tuple[str, int], ...] = ()
    gpus: int | None = None
    lanes: int | None = None


def numbered(plan: Plan) -> dict[str, int]:
    """Rail numbers that the planner gives on its own: PCI address of a card's first port to number."""
    found: dict[str, int] = {}
    for nic in plan.nics:
        if nic.rail is not None and nic.role in _NUMBERED and nic.pci is not None:
            found.setdefault(nic.pci, nic.rail)
    return found


def voted(votes: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """Place to rail, by most votes; no rail twice. votes: (place, rail, nodes)."""
    count: Counter[tuple[str, int]] = Counter()
    for place, rail, nodes in votes:
        count[place, rail] += nodes
    chosen: dict[str, int] = {}
    for (place, rail), _ in sorted(count.items(), key=lambda item: (-item[1], item[0][1], item[0][0])):
        if place not in chosen and rail not in chosen.values():
            chosen[place] = rail
    return chosen


def by_seat(own: Mapping[str, int], places: Mapping[str, str], usual: Mapping[str, int]) -> dict[str, int]:
    """Address to rail on one node. own: what it would say alone. places: address to place. usual: the shape's.

    A card at a place where the shape has no rail gets the lowest number that is left.
    """
    result = {address: usual[places[address]] for address in own if places.get(address) in usual}
    free = iter(sorted(set(range(len(own) + len(usual))) - set(result.values())))
    for address in sorted(own, key=lambda address: own[address]):
        if address not in result:
            result[address] = next(free)
    return result


def leaf_rails(votes: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """Leaf to the rail that it carries. votes: leaf to rail to cables.

    A leaf on which no rail has more than half of the cables carries several, and says nothing about rails.
    """
    found: dict[str, int] = {}
    for leaf, rails in votes.items():
        rail, cables = max(sorted(rails.items()), key=lambda item: item[1])
        if cables * 2 > sum(rails.values()):
            found[leaf] = rail
    return found


def after_leaves(usual: Mapping[str, int], leaves: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """The shape's rails by the leaves that its places are cabled to; as they were where the leaves contradict that.

    leaves: place to rail of the leaf to cables; a place that is on no known leaf keeps its number, or gets a free one.
    """
    settled: dict[str, int] = {}
    for place in usual:
        rails = leaves.get(place)
        if rails:
            rail, cables = max(sorted(rails.items()), key=lambda item: item[1])
            if cables * 2 <= sum(rails.values()) or rail in settled.values():
                return dict(usual)
            settled[place] = rail
    for place in sorted(usual, key=lambda place: usual[place]):
        if place not in settled:
            free = set(range(2 * len(usual))) - set(settled.values())
            settled[place] = usual[place] if usual[place] in free else min(free)
    return settled


def with_part(asked: Policy, part: Part, facts: Facts) -> Policy:
    """The node's whole policy: what the inventory asks, and what the fleet says where the inventory says nothing."""
    nics = list(asked.nics)
    for address, rail in part.rails:
        said = next((n for n, entry in enumerate(nics) if _means_only(entry, address, facts)), None)
        if said is None:
            nics.append(NicPolicy(address, "rail", rail))
        elif nics[said].rail is None and nics[said].role in (None, "rail"):
            nics[said] = replace(nics[said], role="rail", rail=rail)
    expect = Expect(
        gpus=asked.expect.gpus if asked.expect.gpus is not None else part.gpus,
        rails=asked.expect.rails if asked.expect.rails is not None else part.lanes,
    )
    return replace(asked, nics=tuple(nics), expect=expect)


def _means_only(entry: NicPolicy, address: str, facts: Facts) -> bool:
    """Whether the user names this NIC itself. What is said of all of a kind, or by a preset, is the weaker word."""
    meant = {nic.address for nic in facts.nics if answers(nic, entry.match)}
    return entry.source is None and meant == {address}


def rail_ports(facts: Facts, part: Part) -> dict[int, Nic]:
    """Rail to the first port that carries it."""
    rails = dict(part.rails)
    found: dict[int, Nic] = {}
    for nic in facts.nics:
        if nic.address in rails:
            found.setdefault(rails[nic.address], nic)
    return found
