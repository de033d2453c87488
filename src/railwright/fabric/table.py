"""The class table: each class of the contract beside what hosts and switches make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from railwright.node.model import TrafficClass

from .agree import HostPort
from .contract import Contract
from .state import PortState, SwitchState

_Place = dict[str, Any]


def class_table(
    contract: Contract, states: Mapping[str, SwitchState], hosts: Iterable[HostPort]
) -> list[dict[str, Any]]:
    """One row for each class. Every class has the same places in the same order.

    Ports of a switch, or NICs of a host, that are alike in all classes are one place.
    """
    classes = list(contract.classes.values())
    columns = [*_switches(contract, classes, states), *_hosts(classes, tuple(hosts))]
    return [
        {
            "name": name,
            "dscp": list(one.dscp),
            "prio": one.prio,
            "lossless": one.lossless,
            "strict": one.strict,
            "bandwidth_percent": one.bandwidth_percent,
            "places": [column[number] for column in columns],
        }
        for number, (name, one) in enumerate(contract.classes.items())
    ]


def _switches(
    contract: Contract, classes: list[TrafficClass], states: Mapping[str, SwitchState]
) -> Iterable[list[_Place]]:
    for name, switch in contract.switches.items():
        if name not in states:
            yield [_place("switch", dict.fromkeys(one.dscp)) | {"name": name} for one in classes]
            continue
        known = states[name].ports
        yield from _alike(
            name,
            [
                (port, [_on_switch(one, known[port]) for one in classes])
                for port in switch.ports
                if port in known
            ],
        )


def _hosts(classes: list[TrafficClass], hosts: tuple[HostPort, ...]) -> Iterable[list[_Place]]:
    for name in dict.fromkeys(port.host for port in hosts):
        mine = [port for port in hosts if port.host == name]
        yield from _alike(name, [(port.nic, [_on_host(one, port) for one in classes]) for port in mine])


def _alike(name: str, members: list[tuple[str, list[_Place]]]) -> Iterable[list[_Place]]:
    """One column for each kind of member; its name tells which members, where there are several kinds."""
    kinds: dict[str, tuple[list[_Place], list[str]]] = {}
    for member, places in members:
        kinds.setdefault(repr(places), (places, []))[1].append(member)
    for places, names in kinds.values():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        called = name if len(kinds) == 1 else f"{name} {names[0]}{more}"
        yield [place | {"name": called} for place in places]


def _on_switch(one: TrafficClass, here: PortState) -> _Place:
    trusted = here.trust.value == "dscp"
    classes = {
        point: here.dscp_to_tc[point].value if trusted and point in here.dscp_to_tc else None
        for point in one.dscp
    }
    found = set(classes.values())
    traffic_class = found.pop() if len(found) == 1 else None
    queue = here.tc_to_queue.get(traffic_class) if traffic_class is not None else None
    pfc = traffic_class in here.pfc.value if traffic_class is not None else None
    ecn = queue.value in here.ecn if queue is not None else None
    strict = None
    if queue is not None:
        seen = here.strict.get(queue.value)
        strict = seen is not None and seen.value
    if one.lossless:
        agrees = bool(pfc and ecn and traffic_class == one.prio)
    else:
        agrees = pfc is False and (bool(strict) or not one.strict)
    return _place("switch", classes, pfc, ecn, strict, agrees)


def _on_host(one: TrafficClass, port: HostPort) -> _Place:
    dcb = port.dcb
    if dcb is None:
        return _place("host", dict.fromkeys(one.dscp))
    prios: dict[int, int | None] = dict.fromkeys(one.dscp)
    if dcb.dscp_prio is not None:
        prios = {point: dcb.dscp_prio.get(point) for point in one.dscp}
    pfc = one.prio in dcb.pfc if dcb.pfc is not None else None
    strict = None
    if dcb.prio_tc is not None and dcb.tc_strict is not None:
        strict = dcb.prio_tc[one.prio] in dcb.tc_strict
    agrees = None
    if dcb.dscp_prio is not None and pfc is not None:
        agrees = set(prios.values()) == {one.prio} and pfc == one.lossless
        if agrees and one.strict:
            agrees = strict
    return _place("host", prios, pfc, None, strict, agrees)


def _place(
    kind: str,
    dscp: Mapping[int, int | None],
    pfc: bool | None = None,
    ecn: bool | None = None,
    strict: bool | None = None,
    agrees: bool | None = None,
) -> _Place:
    """agrees: None when too little is known."""
    return {
        "name": "",
        "kind": kind,
        "dscp": {str(point): value for point, value in dscp.items()},
        "pfc": pfc,
        "ecn": ecn,
        "strict": strict,
        "agrees": agrees,
    }
