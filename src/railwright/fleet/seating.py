"""Which rail each place of a shape is, which leaf carries it, and what that says of each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import rails
from .cabling import Wiring
from .members import Entry, Members
from .odd import Usual
from .rails import Part
from .shapes import Shape


def seats_and_leaves(
    fleet: Members,
    shapes: Sequence[Shape],
    places: Mapping[str, Mapping[str, str]],
    wiring: Wiring,
    wanted: Wiring,
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Place to rail of each shape, and leaf to rail. Known ones stand; of new ones the larger shapes come first."""
    leaves = dict(fleet.record.leaves)
    # Where a table tells rails, it tells which rail a leaf carries.
    leaves = {
        **rails.leaf_rails(_votes((end.leaf, rail) for (_, rail), end in wanted.rails.items())),
        **leaves,
    }
    seats: dict[str, dict[str, int]] = {}
    by_form: dict[str, list[str]] = {}
    if wiring.ends:
        for name, node in fleet.nodes.items():
            by_form.setdefault(node.member.form, []).append(name)
    for shape in shapes:
        known = fleet.record.shapes.get(shape.key)
        if known is not None:
            seats[shape.key] = dict(known.seats)
        else:
            alone = rails.voted(
                (places[form].get(address, address), rail, count)
                for (form, asked), count in fleet.alike.items()
                if form in shape.forms
                for address, rail in fleet.own_rails(form, asked).items()
            )
            cabled = _cabled(shape, places, by_form, wiring, leaves)
            seats[shape.key] = rails.after_leaves(alone, cabled) if cabled else alone
        found = rails.leaf_rails(
            _votes(
                (end.leaf, seats[shape.key][place])
                for place, end in _ends(shape, places, by_form, wiring)
                if place in seats[shape.key]
            )
        )
        leaves = {**found, **leaves}
    return seats, leaves


def _votes(pairs: Iterable[tuple[str, int]]) -> dict[str, Counter[int]]:
    votes: dict[str, Counter[int]] = {}
    for leaf, rail in pairs:
        votes.setdefault(leaf, Counter())[rail] += 1
    return votes


def _ends(
    shape: Shape, places: Mapping[str, Mapping[str, str]], by_form: Mapping[str, list[str]], wiring: Wiring
) -> Iterator[tuple[str, Any]]:
    for form in shape.forms:
        for name in by_form.get(form, ()):
            for address, place in places[form].items():
                end = wiring.ends.get((name, address))
                if end is not None:
                    yield place, end


def _cabled(
    shape: Shape,
    places: Mapping[str, Mapping[str, str]],
    by_form: Mapping[str, list[str]],
    wiring: Wiring,
    leaves: Mapping[str, int],
) -> dict[str, Counter[int]]:
    """Place to the rails of the leaves that it is cabled to, where those are known already."""
    found: dict[str, Counter[int]] = {}
    for place, end in _ends(shape, places, by_form, wiring):
        if end.leaf in leaves:
            found.setdefault(place, Counter())[leaves[end.leaf]] += 1
    return found


class Parts:
    """What the fleet says of each node: the record's word where the node stands in it."""

    def __init__(
        self,
        fleet: Members,
        shape_of: Mapping[str, Shape],
        places: Mapping[str, Mapping[str, str]],
        seats: Mapping[str, Mapping[str, int]],
        leaves: Mapping[str, int],
        wiring: Wiring,
        usuals: Mapping[Shape, Usual],
    ) -> None:
        self._usuals = usuals
        self._fleet, self._shape_of, self._places, self._seats = fleet, shape_of, places, seats
        self._leaves, self._wiring = leaves, wiring
        self._made: dict[tuple[str, str], Part] = {}
        self._expected: dict[str, tuple[int | None, int | None]] = {}

    def of(self, name: str, node: Entry) -> Part:
        known = self._fleet.record.nodes.get(name)
        if known is not None:
            return known.part
        key = (node.member.form, node.asked)
        if key not in self._made:
            shape = self._shape_of[node.member.form]
            own = {**self._at_rail_seats(node.member.form, shape), **self._fleet.own_rails(*key)}
            given = rails.by_seat(own, self._places[node.member.form], self._seats[shape.key])
            gpus, lanes = self.expected(shape)
            self._made[key] = Part(tuple(sorted(given.items(), key=lambda item: item[1])), gpus, lanes)
        part = self._made[key]
        return part if part.rails else self._by_leaf(name, node, part)

    def _at_rail_seats(self, form: str, shape: Shape) -> dict[str, int]:
        """Address to rail of the NICs that sit where the shape has a rail, and are what sits there elsewhere.

        A port that is down or slower may look like no rail to the node alone.
        """
        usual = self._usuals[shape].seats
        seats, places = self._seats[shape.key], self._places[form]
        found = {}
        for seat in self._fleet.views[form].chassis.seats:
            place = places[seat.address]
            if place in seats and place in usual and usual[place].device == seat.device:
                found[seat.address] = seats[place]
        return found

    def expected(self, shape: Shape) -> tuple[int | None, int | None]:
        """GPUs and rails of a shape: those of its usual machines as the planner counts them."""
        known = self._fleet.record.shapes.get(shape.key)
        if known is not None:
            return known.gpus, known.rails
        if shape.key not in self._expected:
            forms = [form for form in shape.forms if self._fleet.views[form].chassis.form == shape.key]
            counted: Counter[tuple[int, int]] = Counter()
            for (form, asked), count in self._fleet.alike.items():
                if form in forms:
                    plan = self._fleet.forms.plan(form, self._fleet.asked[asked])
                    if plan.status == "planned":
                        counted[
                            len(plan.ranks), len({nic.rail for nic in plan.nics if nic.role == "rail"})
                        ] += count
            best = max(sorted(counted), key=lambda key: (counted[key], key), default=None)
            lanes = None if best is None else max(best[1], len(self._seats[shape.key])) or None
            self._expected[shape.key] = (None, None) if best is None else (best[0], lanes)
        return self._expected[shape.key]

    def _by_leaf(self, name: str, node: Entry, part: Part) -> Part:
        """A machine that hides its tree: the leaves say which rail each NIC is, where each has another one."""
        found = {
            address: self._leaves[end.leaf]
            for (of, address), end in self._wiring.ends.items()
            if of == name and end.leaf in self._leaves
        }
        if not found or len(set(found.values())) != len(found):
            return part
        return replace(part, rails=tuple(sorted(found.items(), key=lambda item: item[1])))
