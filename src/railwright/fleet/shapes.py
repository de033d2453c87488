"""Shapes: nodes of one build. A node that differs in a part or two is an odd one of its shape, no shape of its own.

Machines of one product and GPU model are compared. Among them the most common tree is a shape. Another tree is a shape
of its own where at least a third of the machines have it, or where two or more have it and it differs in a quarter of
the seats: half-populated chassis are sold, chassis with one GPU less are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from railwright.node.model import Facts

from .seats import Chassis, chassis_of
from .traits import Traits, traits_of

_OWN_SHARE = 3  # a third of the machines
_OWN_DIFFERENCE = 4  # a quarter of the seats


@dataclass(frozen=True)
class View:
    """One form as it is compared. product: what the machine calls itself, with its GPU model."""

    facts: Facts
    chassis: Chassis
    traits: Traits
    product: str


@dataclass(frozen=True)
class Shape:
    """Machines of one build. key: digest of the canonical tree. forms: digests. nodes: how many machines."""

    key: str
    name: str
    forms: tuple[str, ...]
    nodes: int


def view_of(facts: Facts) -> View:
    """What a form shows."""
    chassis = chassis_of(facts)
    models = Counter(seat.model for seat in chassis.seats if seat.kind == "GPU")
    usual = max(sorted(models), key=lambda model: models[model], default="no GPU")
    product = facts.host.product or facts.cpus.model_name or "unknown product"
    return View(facts, chassis, traits_of(facts, chassis), f"{product} with GPU {usual}")


def group(views: Mapping[str, View], counts: Mapping[str, int]) -> tuple[Shape, ...]:
    """Shapes, most nodes first. counts: nodes of each form."""
    products: dict[str, dict[str, list[str]]] = {}
    for form in sorted(views):
        trees = products.setdefault(views[form].product, {})
        trees.setdefault(views[form].chassis.form, []).append(form)
    shapes = [shape for name, trees in products.items() for shape in _of_product(name, trees, views, counts)]
    return tuple(sorted(shapes, key=lambda shape: (-shape.nodes, shape.name, shape.key)))


def _of_product(
    name: str, trees: Mapping[str, list[str]], views: Mapping[str, View], counts: Mapping[str, int]
) -> list[Shape]:
    nodes = {tree: sum(counts[form] for form in forms) for tree, forms in trees.items()}
    total = sum(nodes.values())

    def worth(tree: str) -> tuple[int, int, str]:
        # Of two equally common trees the one with more devices is the whole one.
        return (-nodes[tree], -len(views[trees[tree][0]].chassis.seats), tree)

    own: list[str] = []
    members: dict[str, list[str]] = {}
    for tree in sorted(trees, key=worth):
        nearest = min(own, key=lambda other: (_apart(tree, other, trees, views), worth(other)), default=None)
        if nearest is None or _is_own(
            nodes[tree],
            total,
            _apart(tree, nearest, trees, views),
            len(views[trees[nearest][0]].chassis.seats),
        ):
            own.append(tree)
            members[tree] = list(trees[tree])
        else:
            members[nearest] += trees[tree]
    return [
        Shape(
            tree,
            _named(name, views[trees[tree][0]].chassis),
            tuple(members[tree]),
            sum(counts[form] for form in members[tree]),
        )
        for tree in own
    ]


def _is_own(nodes: int, total: int, apart: int, seats: int) -> bool:
    if nodes < 2:
        return False
    return nodes * _OWN_SHARE >= total or apart * _OWN_DIFFERENCE >= seats


def _apart(one: str, other: str, trees: Mapping[str, list[str]], views: Mapping[str, View]) -> int:
    """Seats in which two trees differ, by what sits in them, wherever that is."""
    here, there = (
        Counter(seat.device for seat in views[trees[tree][0]].chassis.seats) for tree in (one, other)
    )
    fewer = sum(((here - there) | (there - here)).values())
    places = (views[trees[tree][0]].chassis.places for tree in (one, other))
    mine, theirs = ({place: seat.device for place, seat in found.items()} for found in places)
    common = mine.keys() & theirs.keys()
    return max(fewer, sum(mine[place] != theirs[place] for place in common))


def _named(product: str, chassis: Chassis) -> str:
    kinds = Counter(seat.kind for seat in chassis.seats)
    plural = {"GPU": "GPUs", "NIC": "NICs", "NVSwitch": "NVSwitches"}
    return f"{product}: " + ", ".join(f"{kinds[kind]} {plural[kind]}" for kind in plural if kinds[kind])
