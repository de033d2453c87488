"""One plan for many nodes: equal rails, the expected shape, odd nodes, and what growth changes.

Nodes are read one after the other. What they have in common is worked out once for each form; see `form`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from railwright.node.model import Facts, Finding, InputError, Policy

from . import rail_network, rails
from .cabling import Directory, Wiring, check_node, wire
from .form import Forms, Member
from .members import Asked, Entry, Members, places_of, reference_of
from .neighbours import Cable
from .odd import Usual, odd_findings, unsettled_findings, usual_of
from .rails import Part
from .record import KnownNode, KnownShape, Record
from .seating import Parts, seats_and_leaves
from .seats import Chassis
from .shapes import Shape, group
from .twins import twin_findings

STATES = ("new", "same", "changed", "left")


@dataclass(frozen=True)
class Planned:
    """One node's place in the fleet. policy: whole. state: one of STATES. findings: how it differs from the others.

    status: the plan's, "planned" or "refused".
    """

    name: str
    shape: str
    policy: Policy
    part: Part
    plan_sha256: str
    status: str
    state: str
    left: str | None
    findings: tuple[Finding, ...]


@dataclass
class FleetPlan:
    """The fleet. leaves: leaf to rail. findings: on the fleet as a whole; each node has its own besides."""

    nodes: dict[str, Planned] = field(default_factory=dict)
    shapes: tuple[Shape, ...] = ()
    leaves: dict[str, int] = field(default_factory=dict)
    wiring: Wiring = field(default_factory=Wiring)
    findings: tuple[Finding, ...] = ()
    record: Record = field(default_factory=Record)
    forms: Forms = field(default_factory=Forms)
    members: dict[str, Member] = field(default_factory=dict)

    def plan_json(self, name: str) -> str:
        """The plan of a node as canonical JSON: the bytes that its digest is taken of."""
        return self.forms.plan_json(self.members[name], self.nodes[name].policy)


def plan_fleet(
    nodes: Iterable[Asked],
    *,
    seen: Sequence[Cable] = (),
    wanted: Sequence[Cable] = (),
    record: Record | None = None,
    replan: Iterable[str] = (),
) -> FleetPlan:
    """The plan of a fleet.

    seen: cables as LLDP, IB discovery or switches tell them. wanted: as they should be. record: of the last plan; nodes
    in it keep their rails, but for those in `replan`. A node whose facts or policy are of no use is a finding and has
    no plan; the others have theirs. Raises InputError for names that stand twice or nowhere.
    """
    again = set(replan)
    old = record if record is not None else Record()
    fleet = Members(replace(old, nodes={name: node for name, node in old.nodes.items() if name not in again}))
    fleet.read(nodes)
    for name in sorted(again - set(fleet.nodes) - set(fleet.unusable)):
        raise InputError("replan", f"{name} is no node of this fleet")
    shapes = group(fleet.views, fleet.counts)
    # By the shape and not by its key: machines of two products can have one tree.
    references = {shape: reference_of(fleet, shape) for shape in shapes}
    usuals = {shape: usual_of(shape, fleet.views, fleet.counts, references[shape]) for shape in shapes}
    members = {name: (node.member, fleet.facts(name)) for name, node in fleet.nodes.items()}
    directory = Directory(members if seen or wanted else {})
    wiring, plan = wire(seen, directory), wire(wanted, directory)
    shape_of = {form: shape for shape in shapes for form in shape.forms}
    places = {form: places_of(fleet, form, shape_of[form]) for form in fleet.views}
    seats, leaves = seats_and_leaves(fleet, shapes, places, wiring if wiring.ends else plan, plan)
    parts = Parts(fleet, shape_of, places, seats, leaves, wiring, usuals)
    result = FleetPlan(shapes=shapes, leaves=leaves, wiring=wiring if seen else plan, forms=fleet.forms)
    odd = _odd(fleet, shapes, usuals, references)
    for name, node in fleet.nodes.items():
        try:
            planned = _planned(name, node, fleet, shape_of[node.member.form], parts.of(name, node), odd)
        except InputError as error:
            fleet.unusable[name] = error
            continue
        if seen:
            ports = rails.rail_ports(fleet.facts(name), planned.part)
            crossed = check_node(name, ports, wiring, plan, leaves)
            planned = replace(planned, findings=(*planned.findings, *crossed)) if crossed else planned
        result.nodes[name] = planned
        result.members[name] = node.member
    result.findings = (
        *(finding for shape in shapes for finding in unsettled_findings(shape, usuals[shape])),
        *(_unusable(name, error) for name, error in fleet.unusable.items()),
        *twin_findings(members),
        *wiring.findings,
        *plan.findings,
        *rail_network.findings(
            rail_network.RailsOf(
                name, result.members[name], rails.rail_ports(fleet.facts(name), planned.part)
            )
            for name, planned in result.nodes.items()
        ),
    )
    result.record = _recorded(fleet, result, seats, parts)
    return result


def _unusable(name: str, error: InputError) -> Finding:
    return Finding(
        "fleet.unusable",
        "error",
        name,
        f"has no place in the fleet's plan: {error.where}: {error.why}",
        error.remedy or "correct it, or read the node again",
    )


def _odd(
    fleet: Members,
    shapes: Sequence[Shape],
    usuals: Mapping[Shape, Usual],
    references: Mapping[Shape, Chassis],
) -> dict[str, tuple[Finding, ...]]:
    return {
        form: odd_findings(fleet.views[form], usuals[shape], references[shape])
        for shape in shapes
        for form in shape.forms
    }


# -- nodes and record --


def _planned(
    name: str, node: Entry, fleet: Members, shape: Shape, part: Part, odd: Mapping[str, tuple[Finding, ...]]
) -> Planned:
    policy = fleet.merged(node, part)
    digest = fleet.forms.plan_sha256(node.member, policy)
    known = fleet.record.nodes.get(name)
    state = "new" if known is None else "same" if known.plan_sha256 == digest else "changed"
    return Planned(
        name,
        shape.name,
        policy,
        part,
        digest,
        fleet.forms.plan(node.member.form, policy).status,
        "left" if node.left else state,
        node.left,
        (*odd[node.member.form], *_gone(name, part, fleet.facts(name))),
    )


def _gone(name: str, part: Part, facts: Facts) -> tuple[Finding, ...]:
    """Rails of the record whose NIC is not at its address any more."""
    there = {nic.address for nic in facts.nics}
    return tuple(
        Finding(
            "fleet.rail_gone",
            "error",
            f"rail{rail} ({address})",
            f"the fleet's record has rail {rail} of {name} at {address}, and there is no NIC now",
            f"find out why it is gone; where the card has moved for good: railwright fleet plan ... --replan {name}",
        )
        for address, rail in part.rails
        if address not in there
    )


def _recorded(fleet: Members, result: FleetPlan, seats: Mapping[str, dict[str, int]], parts: Parts) -> Record:
    """The next record. A node that is left alone keeps its entry: nothing new reaches it."""
    shapes = dict(fleet.record.shapes)
    shape_key = {form: shape.key for shape in result.shapes for form in shape.forms}
    for shape in result.shapes:
        if shape.key not in shapes:
            gpus, lanes = parts.expected(shape)
            shapes[shape.key] = KnownShape(
                shape.name,
                gpus,
                lanes,
                seats[shape.key],
                tuple(seat.place for seat in reference_of(fleet, shape).seats),
            )
    nodes = dict(fleet.record.nodes)
    for name, planned in result.nodes.items():
        if planned.state == "left":
            continue
        part = planned.part
        nodes[name] = KnownNode(
            shape_key[fleet.nodes[name].member.form],
            dict(part.rails),
            part.gpus,
            part.lanes,
            planned.plan_sha256,
        )
    return Record(shapes=shapes, leaves=result.leaves, nodes=nodes)
