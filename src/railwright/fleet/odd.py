"""Odd nodes: what differs from most nodes of the same shape, with the device, what it is and what most have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from railwright.node.model import Finding
from railwright.node.words import some_of

from .seats import Chassis, Seat
from .shapes import Shape, View
from .traits import KINDS, Traits

# What holds of seats is not said again of what sits in them.
_MISSING = "power the node off fully, reseat the card and look at the BMC's log"


@dataclass(frozen=True)
class Usual:
    """What more than half of a shape's nodes have.

    seats: place to what sits there. traits: the same for traits. share: how many nodes have it. nodes: of how many.
    unsettled: traits of which no value is that common, with how many nodes have which.
    """

    seats: dict[str, Seat]
    traits: Traits
    share: dict[tuple[str, str], int]
    nodes: int
    unsettled: dict[tuple[str, str], dict[str, int]]


def usual_of(shape: Shape, views: Mapping[str, View], counts: Mapping[str, int], reference: Chassis) -> Usual:
    """The majority of a shape. Nodes whose buses are numbered differently count at the places of the others."""
    seats: dict[str, Counter[str]] = {}
    example: dict[tuple[str, str], Seat] = {}
    traits: dict[tuple[str, str], Counter[str]] = {}
    for form in shape.forms:
        moved = places_in(views[form].chassis, reference)
        for seat in views[form].chassis.seats:
            place = moved.get(seat.place, seat.place)
            seats.setdefault(place, Counter())[seat.device] += counts[form]
            if (place, seat.device) not in example or place == seat.place:
                example[place, seat.device] = seat
        for (place, code), value in views[form].traits.items():
            traits.setdefault((moved.get(place, place), code), Counter())[value] += counts[form]
    usual = Usual({}, {}, {}, shape.nodes, {})
    for place, devices in seats.items():
        device, count = devices.most_common(1)[0]
        if count * 2 > shape.nodes or (count * 2 == shape.nodes and place in reference.places):
            usual.seats[place] = example[place, device]
            usual.share[place, ""] = count
    for key, values in traits.items():
        value, count = values.most_common(1)[0]
        if count * 2 > sum(values.values()):
            usual.traits[key] = value
            usual.share[key] = count
        else:
            usual.unsettled[key] = dict(values)
    return usual


def places_in(chassis: Chassis, reference: Chassis) -> dict[str, str]:
    """Own place to the place of the reference, for a chassis whose buses are numbered differently; else nothing.

    Where fewer than half of the places are the reference's and the same devices come in canonical order, the places
    are the same ones under other numbers.
    """
    ours, theirs = chassis.seats, reference.seats
    known = sum(seat.place in reference.places for seat in ours)
    if known * 2 >= len(ours) or [seat.device for seat in ours] != [seat.device for seat in theirs]:
        return {}
    return {own.place: other.place for own, other in zip(ours, theirs, strict=True)}


def odd_findings(view: View, usual: Usual, reference: Chassis) -> tuple[Finding, ...]:
    """What is odd about the nodes of one form."""
    moved = places_in(view.chassis, reference)
    ours = {moved.get(seat.place, seat.place): seat for seat in view.chassis.seats}
    found = list(_odd_seats(ours, usual))
    if moved:
        found.append(_renumbered(view.chassis, reference, usual))
    gone = {
        place for place in usual.seats if place not in ours or ours[place].device != usual.seats[place].device
    }
    traits = {(moved.get(place, place), code): value for (place, code), value in view.traits.items()}
    # Where the processors are divided otherwise, every device is on another node: that is one thing, not twenty.
    divided = traits.get(("", "fleet.numa")) != usual.traits.get(("", "fleet.numa"))
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (place, code), value in traits.items():
        wanted = usual.traits.get((place, code))
        if wanted is None or wanted == value or place in gone or (code == "fleet.device_numa" and divided):
            continue
        alike.setdefault((code, value, wanted), []).append(place)
    for (code, value, wanted), places in alike.items():
        found.append(_odd_trait(code, value, wanted, places, ours, usual))
    return tuple(found)


def _odd_seats(ours: Mapping[str, Seat], usual: Usual) -> Iterator[Finding]:
    missing = [place for place in usual.seats if place not in ours]
    extra = [place for place in ours if place not in usual.seats]
    other = [
        place for place in usual.seats if place in ours and ours[place].device != usual.seats[place].device
    ]
    yield from _swapped(other, ours, usual)
    for place in list(missing):
        seat = usual.seats[place]
        there = next((place for place in extra if ours[place].device == seat.device), None)
        if there is not None:
            missing.remove(place)
            extra.remove(there)
            yield Finding(
                "fleet.other_slot",
                "error",
                f"{ours[there].name} ({_at(ours[there])})",
                f"this {seat.kind} sits at {there}, where {_most(usual, place)} have it at {place}",
                f"move the card to {place}, or say that this node is built otherwise (another product name in DMI)",
            )
    for place in missing:
        seat = usual.seats[place]
        code = {"GPU": "fleet.gpu_missing", "NIC": "fleet.nic_missing"}.get(seat.kind, "fleet.switch_missing")
        yield Finding(
            code,
            "error",
            f"{seat.kind} at {place}",
            f"there is none, where {_most(usual, place)} have {seat.kind} {seat.model} at {_at(seat)}",
            _MISSING,
        )
    for place in extra:
        seat = ours[place]
        yield Finding(
            "fleet.device_extra",
            "warning",
            f"{seat.name} ({_at(seat)})",
            f"{seat.kind} {seat.model} at {place}, where most nodes of this shape have nothing",
            "take it out, or build the other nodes alike",
        )


def _swapped(other: list[str], ours: Mapping[str, Seat], usual: Usual) -> Iterator[Finding]:
    left = list(other)
    for place in other:
        if place not in left:
            continue
        left.remove(place)
        mate = next(
            (
                mate
                for mate in left
                if ours[mate].device == usual.seats[place].device
                and ours[place].device == usual.seats[mate].device
            ),
            None,
        )
        if mate is not None:
            left.remove(mate)
            yield Finding(
                "fleet.swapped",
                "error",
                f"{ours[place].name} ({_at(ours[place])}), {ours[mate].name} ({_at(ours[mate])})",
                f"{ours[place].device} at {place} and {ours[mate].device} at {mate} are swapped: {_most(usual, place)} "
                f"have {usual.seats[place].model} and {usual.seats[mate].model} there",
                f"swap the cards at {place} and {mate}",
            )
            continue
        yield Finding(
            "fleet.other_device",
            "error",
            f"{ours[place].name} ({_at(ours[place])})",
            f"{ours[place].device} at {place}, where {_most(usual, place)} have {usual.seats[place].device}",
            "put in what the others have, or say that this node is built otherwise (another product name in DMI)",
        )


def _renumbered(chassis: Chassis, reference: Chassis, usual: Usual) -> Finding:
    own, other = chassis.seats[0], reference.seats[0]
    return Finding(
        "fleet.renumbered",
        "info",
        f"{own.name} ({own.address})",
        f"the firmware numbers buses differently here: {own.kind} {own.model} is at {own.address}, where most nodes of "
        f"this shape ({usual.nodes}) have it at {other.address}; devices were matched by the form of the tree",
        "compare BIOS version and settings; rails are equal all the same",
    )


def _odd_trait(
    code: str, value: str, wanted: str, places: list[str], ours: Mapping[str, Seat], usual: Usual
) -> Finding:
    kind = KINDS[code]
    if places == [""]:
        where, subject = "node", ""
    else:
        seats = [ours[place] for place in places]
        where = ", ".join(f"{seat.name} ({_at(seat)})" for seat in seats)
        subject = (
            some_of((f"{seat.kind} at {place}" for seat, place in zip(seats, places, strict=True)), 3) + ": "
        )
    share = usual.share[places[0], code]
    remedy = kind.remedy.replace("ADDRESS", ours[places[0]].address if places != [""] else "")
    return Finding(
        code,
        kind.severity,
        where,
        f"{subject}{kind.words} {value}, where {share} of {usual.nodes} nodes of this shape have {wanted}",
        remedy,
    )


def _on_how_many(values: Mapping[str, int]) -> str:
    return ", ".join(f"{value} on {count}" for value, count in sorted(values.items()))


def _at(seat: Seat) -> str:
    return seat.address


def _most(usual: Usual, place: str) -> str:
    return f"{usual.share[place, '']} of {usual.nodes} nodes of this shape"


def unsettled_findings(shape: Shape, usual: Usual) -> tuple[Finding, ...]:
    """Traits in which the nodes of a shape differ without a majority: nobody can say which of them is right."""
    by_code: dict[str, tuple[list[str], dict[str, int]]] = {}
    for (place, code), values in usual.unsettled.items():
        if sum(values.values()) < 2 or len(values) < 2:
            continue
        by_code.setdefault(code, ([], values))[0].append(place or "the node")
    return tuple(
        Finding(
            "fleet.no_majority",
            "info",
            f"{shape.name}: {some_of(places, 3)}",
            f"{KINDS[code].words} {_on_how_many(values)}: no value "
            "is on more than half of the nodes, so none of them is called odd",
            "decide which one is meant and bring the others to it",
        )
        for code, (places, values) in by_code.items()
    )
