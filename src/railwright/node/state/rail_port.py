"""A rail's port as an entry tells it, and what the kernel has of it by the word of `ip`."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ..model import InputError, normalise_address
from .fields import Fields, expected, sequence
from .item import Node
from .outcome import Refused

# What `ip` is asked, once for all rails.
_ASKED = (
    ("ip", "-N", "-j", "-4", "address"),
    ("ip", "-N", "-j", "-4", "rule"),
    ("ip", "-N", "-j", "-4", "route", "show", "table", "all"),
)
# A route that leads nowhere, as `ip` prints its type with and without -N (include/uapi/linux/rtnetlink.h).
_UNREACHABLE = ("7", "unreachable")
NOWHERE = "unreachable default"
# `ip` names no table for a route of this one.
MAIN = "254"
_LABEL = re.compile(r"rail[0-9]{1,3}(?:p[2-9])?", re.ASCII)


@dataclass(frozen=True)
class RailPort:
    """One rail's port, as the entry tells it. profile: how its files are called."""

    rail: int
    device: str
    interface: ipaddress.IPv4Interface
    table: int
    priority: int
    gateway: Optional[str]
    profile: str

    @property
    def source(self) -> str:
        return str(self.interface.ip)

    @property
    def ways(self) -> tuple[str, ...]:
        """Where its table's routes lead, as `ip` takes it: to its network, and from there to its gateway or nowhere."""
        return (str(self.interface.network), NOWHERE if self.gateway is None else "default")

    def routes(self, netdev: str) -> tuple[tuple[str, str, str], ...]:
        """These as `Told` has them."""
        return tuple((str(self.table), "" if to == NOWHERE else netdev, to) for to in self.ways)

    @property
    def given(self) -> tuple[object, ...]:
        return (self.device, self.interface, self.table, self.priority, self.gateway)


@dataclass(frozen=True)
class Told:
    """What `ip` says: addresses by netdev, rules as (from, table, priority), routes as (table, netdev, to).

    A route that leads nowhere has no netdev ("").
    """

    addresses: Mapping[str, frozenset[str]]
    rules: frozenset[tuple[str, str, int]]
    routes: frozenset[tuple[str, str, str]]


def ask(node: Node) -> Told:
    """What stands there now. Raises Refused where `ip` does not tell it in the form that iproute2 has."""
    links, rules, ways = (_answer(node, argv) for argv in _ASKED)
    addresses: dict[str, set[str]] = {}
    try:
        for link in links:
            for held in link.get("addr_info", ()):
                text = f"{held['local']}/{held['prefixlen']}"
                addresses.setdefault(str(link.get("ifname")), set()).add(text)
        return Told(
            {name: frozenset(held) for name, held in addresses.items()},
            frozenset(
                (str(rule.get("src")), str(rule.get("table")), int(rule.get("priority", 0))) for rule in rules
            ),
            frozenset(map(_route, ways)),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Refused(
            "what ip answers has not the form that iproute2 gives it", "run ip -N -j -4 address on the node"
        ) from None


def _route(way: Mapping[str, Any]) -> tuple[str, str, str]:
    table, to = str(way.get("table", MAIN)), str(way.get("dst"))
    if str(way.get("type")) in _UNREACHABLE:
        return table, "", f"unreachable {to}"
    return table, str(way.get("dev")), to


def _answer(node: Node, argv: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of `ip -j`. Raises Refused for anything else."""
    said = None if node.tools is None else node.tools(argv)
    if said is None or said.code is None:
        raise Refused("the node has no ip", "install iproute2")
    command = " ".join(argv)
    if not said.ok:
        raise Refused(f"{command}: {said.word}", "run it by hand on the node")
    try:
        rows = json.loads(said.out or "[]")
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused(
            f"{command} answered {said.out[:60]!r}", "expected a list in JSON, as iproute2 prints it"
        )
    return rows


def ports_of(fields: Fields) -> tuple[RailPort, ...]:
    """The `ports` of an entry. Raises InputError."""
    where = f"{fields.where}.ports"
    return tuple(
        _port(Fields(entry, f"{where}[{n}]")) for n, entry in enumerate(sequence(fields.take("ports"), where))
    )


def _port(fields: Fields) -> RailPort:
    text = fields.text("address")
    try:
        interface = ipaddress.IPv4Interface(text)
    except ValueError:
        raise InputError(
            f"{fields.where}.address", f"found {text!r}", "expected a form like 10.100.0.2/24"
        ) from None
    gateway = fields.maybe("gateway")
    if gateway is not None and not isinstance(gateway, str):
        raise expected(f"{fields.where}.gateway", "text", gateway)
    label = fields.text("label")
    if _LABEL.fullmatch(label) is None:
        raise InputError(f"{fields.where}.label", f"found {label!r}", "expected a form like rail0 or rail0p2")
    found = RailPort(
        rail=fields.number("rail", 0, 1023),
        device=normalise_address(fields.text("device"), f"{fields.where}.device"),
        interface=interface,
        table=fields.number("table", 1, 2**32 - 1),
        priority=fields.number("priority", 1, 32765),
        gateway=gateway,
        profile=f"railwright-{label}",
    )
    for key in ("netdev", "name", "mtu", "rdma_mtu"):
        fields.maybe(key)  # for whoever reads the plan
    fields.close()
    return found
