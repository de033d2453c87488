"""The nodes of a fleet while it is planned: forms, what each is asked to be, policies, each made once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from railwright.node.model import Facts, InputError, Policy

from . import rails
from .form import Forms, Member
from .odd import places_in
from .rails import Part
from .record import Record
from .seats import Chassis
from .shapes import Shape, View, view_of


@dataclass(frozen=True)
class Asked:
    """One node as it comes: facts as JSON, what the inventory asks, and why it must be left alone now, if it must.

    An InputError in place of the facts says why they cannot be read.
    """

    name: str
    facts: Any
    policy: Policy
    left: str | None = None


@dataclass(frozen=True)
class Entry:
    """One node. asked: the digest of its policy. left: why it is left alone, if it is."""

    member: Member
    asked: str
    left: str | None


class Members:
    """What is known of all nodes."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.forms = Forms()
        self.nodes: dict[str, Entry] = {}
        self.asked: dict[str, Policy] = {}
        self.counts: Counter[str] = Counter()
        self.alike: Counter[tuple[str, str]] = Counter()
        self.views: dict[str, View] = {}
        self.unusable: dict[str, InputError] = {}
        self._merged: dict[tuple[str, str, Part], Policy] = {}

    def read(self, nodes: Iterable[Asked]) -> None:
        """Take in nodes, one after the other. One of no use is left out: it must not stop the others.

        Raises InputError for a name that stands twice.
        """
        for node in nodes:
            if node.name in self.nodes or node.name in self.unusable:
                raise InputError(node.name, "stands twice in the fleet", "give each node once")
            if isinstance(node.facts, InputError):
                self.unusable[node.name] = node.facts
                continue
            asked = self.forms.policy_digest(node.policy)
            try:
                member = self.forms.add(node.name, node.facts, node.policy.nccl.addr_range)
                self.forms.plan(member.form, node.policy)
            except InputError as error:
                self.unusable[node.name] = error
                continue
            self.asked.setdefault(asked, node.policy)
            self.nodes[node.name] = Entry(member, asked, node.left)
            self.counts[member.form] += 1
            self.alike[member.form, asked] += 1
        self.views = {form: view_of(self.forms.forms[form].facts) for form in self.counts}

    def facts(self, name: str) -> Facts:
        """The facts of the form that a node has."""
        return self.forms.forms[self.nodes[name].member.form].facts

    def own_rails(self, form: str, asked: str) -> dict[str, int]:
        """PCI address to rail, as the planner numbers them without a fleet."""
        return rails.numbered(self.forms.plan(form, self.asked[asked]))

    def merged(self, node: Entry, part: Part) -> Policy:
        """The whole policy of a node with this part."""
        key = (node.member.form, node.asked, part)
        if key not in self._merged:
            facts = self.forms.forms[node.member.form].facts
            self._merged[key] = rails.with_part(self.asked[node.asked], part, facts)
        return self._merged[key]


def places_of(fleet: Members, form: str, shape: Shape) -> dict[str, str]:
    """Address to place, in the shape's words."""
    chassis = fleet.views[form].chassis
    moved = places_in(chassis, reference_of(fleet, shape))
    return {seat.address: moved.get(seat.place, seat.place) for seat in chassis.seats}


def reference_of(fleet: Members, shape: Shape) -> Chassis:
    """The chassis whose places are the shape's: the record's, else those of the most common form of its tree."""
    own = [form for form in shape.forms if fleet.views[form].chassis.form == shape.key]
    chassis = fleet.views[max(sorted(own), key=lambda form: fleet.counts[form])].chassis
    known = fleet.record.shapes.get(shape.key)
    if known is None or len(known.places) != len(chassis.seats):
        return chassis
    # Equal trees have the same devices in canonical order.
    seats = (replace(seat, place=place) for seat, place in zip(chassis.seats, known.places, strict=True))
    return Chassis(tuple(seats), chassis.form)
