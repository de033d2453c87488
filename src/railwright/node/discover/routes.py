"""Addresses and default routes, from proc/net. Integers there stand in the byte order of a little-endian kernel."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Optional

from ..model import InputError
from .tree import Tree, each_line

# A full routing table of a border router would be larger; a GPU node with one is refused, not misread.
_TABLE_BYTES = 32 * 1024 * 1024
# include/uapi/linux/route.h
_UP = 0x0001
_REJECT = 0x0200
# The scope field of proc/net/if_inet6: IPV6_ADDR_LOOPBACK and IPV6_ADDR_LINKLOCAL (include/net/ipv6.h).
_LOCAL_SCOPES = frozenset({0x10, 0x20})


@dataclass(frozen=True)
class Routes:
    """What proc/net tells of interfaces.

    defaults: interfaces that hold an IPv4 default route of the lowest metric, or an IPv6 one where there is no IPv4
    default route; None where no table was readable.
    addresses: by interface, "10.0.0.5/24", IPv4 first. shared: local IPv4 addresses that several interfaces could hold,
    with those interfaces and the prefix length.
    """

    defaults: Optional[frozenset[str]]
    addresses: dict[str, tuple[str, ...]]
    shared: tuple[tuple[str, int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class _Route:
    interface: str
    network: ipaddress.IPv4Network
    direct: bool
    metric: int


def read_routes(tree: Tree) -> Routes:
    """Routes and addresses. Raises InputError for a line that is no such table's."""
    routes4 = _routes4(tree)
    routes6 = _defaults6(tree)
    defaults = None
    if routes4 is not None or routes6 is not None:
        ways = [(route.metric, route.interface) for route in routes4 or () if route.network.prefixlen == 0]
        # A leaf switch that sends router advertisements gives every rail an IPv6 default route, so IPv6 tells the
        # front end only where IPv4 does not.
        defaults = frozenset(_cheapest(ways) or _cheapest(list(routes6 or ())))
    addresses: dict[str, list[str]] = {}
    shared = []
    for address in _local4(tree):
        length, interfaces = _holders(address, routes4 or ())
        if len(interfaces) == 1:
            addresses.setdefault(interfaces[0], []).append(f"{address}/{length}")
        elif interfaces:
            shared.append((str(address), length, interfaces))
    for interface, text in _addresses6(tree):
        addresses.setdefault(interface, []).append(text)
    return Routes(defaults, {name: tuple(held) for name, held in addresses.items()}, tuple(shared))


def _cheapest(ways: list[tuple[int, str]]) -> set[str]:
    lowest = min((metric for metric, _ in ways), default=0)
    return {interface for metric, interface in ways if metric == lowest}


def _holders(address: ipaddress.IPv4Address, routes: tuple[_Route, ...]) -> tuple[int, tuple[str, ...]]:
    """The longest connected prefix around an address and the interfaces that have it."""
    around = [
        route for route in routes if route.direct and route.network.prefixlen and address in route.network
    ]
    longest = max((route.network.prefixlen for route in around), default=0)
    names = {route.interface for route in around if route.network.prefixlen == longest}
    return longest, tuple(sorted(names))


def _routes4(tree: Tree) -> Optional[tuple[_Route, ...]]:
    path = "proc/net/route"
    text = tree.text(path, _TABLE_BYTES)
    if text is None:
        return None
    routes = []
    for number, line in enumerate(each_line(text), start=1):
        if number == 1:
            continue
        parts = line.split()
        try:
            name, destination, gateway, flags, _, _, metric, mask = parts[:8]
            network = ipaddress.IPv4Network((_address4(destination), bin(int(mask, 16)).count("1")))
            bits = int(flags, 16)
            if bits & _UP and not bits & _REJECT:
                routes.append(_Route(name, network, int(gateway, 16) == 0, int(metric)))
        except ValueError:
            raise InputError(
                f"{tree.where(path)}:{number}", f"found {line[:80]!r}", "expected a route of eleven columns"
            ) from None
    return tuple(routes)


def _address4(text: str) -> str:
    return str(ipaddress.IPv4Address(bytes.fromhex(text)[::-1]))


def _defaults6(tree: Tree) -> Optional[tuple[tuple[int, str], ...]]:
    path = "proc/net/ipv6_route"
    text = tree.text(path, _TABLE_BYTES)
    if text is None:
        return None
    ways = []
    for number, line in enumerate(each_line(text), start=1):
        try:
            destination, length, _, _, _, metric, _, _, flags, name = line.split()
            bits = int(flags, 16)
            if int(destination, 16) == 0 and int(length, 16) == 0 and bits & _UP and not bits & _REJECT:
                ways.append((int(metric, 16), name))
        except ValueError:
            raise InputError(
                f"{tree.where(path)}:{number}", f"found {line[:80]!r}", "expected a route of ten columns"
            ) from None
    return tuple(ways)


def _local4(tree: Tree) -> tuple[ipaddress.IPv4Address, ...]:
    """Addresses of this machine, without loopback, in the order of the table.

    A leaf is a line `|-- 10.0.0.5`, and `/32 host LOCAL` below it says that the address is our own.
    """
    path = "proc/net/fib_trie"
    text = tree.text(path, _TABLE_BYTES)
    found: dict[ipaddress.IPv4Address, None] = {}
    leaf: Optional[ipaddress.IPv4Address] = None
    for number, line in enumerate(each_line(text or ""), start=1):
        words = line.split()
        if words[:1] == ["|--"]:
            try:
                leaf = ipaddress.IPv4Address(words[1])
            except (IndexError, ValueError):
                raise InputError(
                    f"{tree.where(path)}:{number}",
                    f"found {line[:80]!r}",
                    "expected a leaf like '|-- 10.0.0.5'",
                ) from None
        elif words == ["/32", "host", "LOCAL"] and leaf is not None and not leaf.is_loopback:
            found[leaf] = None
    return tuple(found)


def _addresses6(tree: Tree) -> tuple[tuple[str, str], ...]:
    path = "proc/net/if_inet6"
    found = []
    for number, line in enumerate(each_line(tree.text(path, _TABLE_BYTES) or ""), start=1):
        try:
            digits, _, length, scope, _, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if int(scope, 16) not in _LOCAL_SCOPES:
                found.append((name, f"{address}/{int(length, 16)}"))
        except ValueError:
            raise InputError(
                f"{tree.where(path)}:{number}", f"found {line[:80]!r}", "expected an address of six columns"
            ) from None
    return tuple(found)
