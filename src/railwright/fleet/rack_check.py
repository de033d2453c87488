"""What is wrong with a list of nodes, in sentences."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

from railwright.node.model import Finding

from .inventory import Machine, interface_of, ip_of

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def problems(machines: Sequence[Machine]) -> tuple[Finding, ...]:
    """What is wrong with the list, in sentences; errors make an inventory unusable."""
    return (
        *_of_words(machines),
        *_of_names(machines),
        *_of_addresses(machines),
        *_of_rails(machines),
        *_of_places(machines),
    )


def _is_name(text: str) -> bool:
    """A host name; what is made of digits and dots only is an address that went wrong."""
    return _NAME.fullmatch(text) is not None and not text.replace(".", "").isdecimal()


def _twice(pairs: Iterator[tuple[str, Machine]]) -> Iterator[tuple[str, list[Machine]]]:
    seen: dict[str, list[Machine]] = {}
    for key, machine in pairs:
        seen.setdefault(key, []).append(machine)
    yield from ((key, found) for key, found in seen.items() if len(found) > 1)


def _of_words(machines: Sequence[Machine]) -> Iterator[Finding]:
    """Ansible takes what stands in an inventory for a template, and would run it."""
    for machine in machines:
        words = [machine.rack, machine.position, *(w for r in machine.rails for w in (r.leaf, r.port))]
        for word in words:
            if word is not None and (not word.isprintable() or re.search(r"\{[{%#]", word)):
                yield Finding(
                    "inventory.word",
                    "error",
                    machine.where,
                    f"{machine.name}: {word!r} holds control characters or a template",
                    "correct it in the list",
                )


def _of_names(machines: Sequence[Machine]) -> Iterator[Finding]:
    for machine in machines:
        if not _NAME.fullmatch(machine.name):
            yield Finding(
                "inventory.name",
                "error",
                machine.where,
                f"{machine.name!r} is no host name",
                "letters, digits, - and .",
            )
    for name, found in _twice((machine.name.lower(), machine) for machine in machines):
        places = ", ".join(machine.where for machine in found)
        yield Finding(
            "inventory.name_twice",
            "error",
            places,
            f"{name} stands {len(found)} times",
            "give each node one line",
        )


def _is_nobodys(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_unspecified or address.is_multicast or int(address) == 2**address.max_prefixlen - 1


def _of_addresses(machines: Sequence[Machine]) -> Iterator[Finding]:
    for machine in machines:
        if machine.address is None:
            yield Finding(
                "inventory.no_address",
                "info",
                machine.where,
                f"{machine.name} has no address: it is reached by its name",
                "make sure that the name resolves",
            )
        elif ip_of(machine.address) is None and not _is_name(machine.address):
            yield Finding(
                "inventory.address",
                "error",
                machine.where,
                f"{machine.address!r} is no address",
                "correct it in the list",
            )
        elif (own := ip_of(machine.address)) is not None and _is_nobodys(own):
            yield Finding(
                "inventory.address",
                "error",
                machine.where,
                f"{machine.address} is no node's address",
                "correct it in the list",
            )
    taken = ((machine.address, machine) for machine in machines if machine.address is not None)
    for address, found in _twice(taken):
        names = ", ".join(machine.name for machine in found)
        yield Finding(
            "inventory.address_twice",
            "error",
            ", ".join(machine.where for machine in found),
            f"{names} have the same address {address}",
            "two nodes cannot; correct the list",
        )


def _of_rails(machines: Sequence[Machine]) -> Iterator[Finding]:
    counts = [len(machine.rails) for machine in machines]
    usual = max(set(counts), key=lambda count: (counts.count(count), count), default=0)
    subnets: dict[str, set[int]] = {}
    for machine in machines:
        if len(machine.rails) != usual:
            yield Finding(
                "inventory.rails",
                "warning",
                machine.where,
                f"{machine.name} has {len(machine.rails)} rails where most nodes have {usual}",
                "complete the line, or leave it if the node is another one",
            )
        for number in sorted({rail.rail for rail in machine.rails}):
            count = sum(rail.rail == number for rail in machine.rails)
            if count > 1:
                yield Finding(
                    "inventory.rail_twice",
                    "error",
                    machine.where,
                    f"{machine.name} has rail {number} {count} times",
                    "one rail has one interface; correct the list",
                )
        for rail in machine.rails:
            interface = None if rail.address is None else interface_of(rail.address)
            if rail.address is not None and interface is None:
                yield Finding(
                    "inventory.address",
                    "error",
                    machine.where,
                    f"rail {rail.rail}: {rail.address!r} is no address",
                    "correct it",
                )
            elif interface is not None and interface.network.prefixlen < interface.max_prefixlen - 1:
                subnets.setdefault(str(interface.network), set()).add(rail.rail)
    for subnet, rails in subnets.items():
        if len(rails) > 1:
            yield Finding(
                "inventory.one_subnet",
                "error",
                subnet,
                f"rails {', '.join(map(str, sorted(rails)))} share the subnet {subnet}: answers leave by any of them",
                "give each rail a subnet of its own (railwright inventory --network 10.100.0.0/16)",
            )
    ends = ((rail.address.split("/")[0], m) for m in machines for rail in m.rails if rail.address)
    for address, found in _twice(ends):
        names = ", ".join(machine.name for machine in found)
        yield Finding(
            "inventory.address_twice",
            "error",
            found[0].where,
            f"{names}: the rail address {address} is given twice",
            "correct it",
        )
    ports = ((f"{rail.leaf}/{rail.port}", m) for m in machines for rail in m.rails if rail.leaf and rail.port)
    for port, found in _twice(ports):
        names = ", ".join(machine.name for machine in found)
        yield Finding(
            "inventory.port_twice", "error", port, f"{names} are both on {port}", "one port holds one cable"
        )


def _of_places(machines: Sequence[Machine]) -> Iterator[Finding]:
    taken = (
        (f"{m.rack} U{m.position}", m) for m in machines if m.rack is not None and m.position is not None
    )
    for place, found in _twice(taken):
        names = ", ".join(machine.name for machine in found)
        yield Finding(
            "inventory.place_twice", "warning", place, f"{names} stand in the same place", "correct the list"
        )
