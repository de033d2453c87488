"""Addresses and routes: /proc/net/{route,fib_trie,dev,if_inet6,ipv6_route}.

sysfs knows no IP address. IPv4 addresses are the `/32 host LOCAL` leaves of fib_trie; which interface holds one
follows from the connected route in `route`, and for an RDMA port from its GID table. Formats: net/ipv4/fib_trie.c,
net/ipv6/route.c and net/ipv6/addrconf.c of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from .errors import MachineError
from .model import Machine, Nic
from .nics import interface_numbers, link_local
from .tree import Tree

_UP, _GATEWAY = 0x1, 0x2
_PER_INTERFACE = ("accept_local", "arp_announce", "arp_ignore", "forwarding", "rp_filter")


@dataclass(frozen=True, order=True)
class Prefix:
    """One IPv4 prefix of the trie: how the kernel calls its scope and type."""

    key: int
    length: int
    scope: str
    kind: str


def add_networks(tree: Tree, machine: Machine) -> None:
    """The files of /proc/net."""
    up = [nic for nic in machine.nics if nic.netdev and nic.state == "ACTIVE"]
    gateway = _gateway(machine)
    tree.file("proc/net/route", _routes(machine, up, gateway))
    tree.file("proc/net/fib_trie", fib_trie(prefixes(up, gateway)))
    tree.file("proc/net/dev", _devices(machine))
    tree.file("proc/net/if_inet6", _inet6(machine, up))
    tree.file("proc/net/ipv6_route", _routes6(up))
    # A folder for each interface; what the description says of one of them comes over it.
    for name in ("all", "default", *interface_numbers(machine)):
        tree.lines(f"proc/sys/net/ipv4/conf/{name}", dict.fromkeys(_PER_INTERFACE, 0))


def _gateway(machine: Machine) -> tuple[Nic, IPv4Address] | None:
    if machine.default_nic is None or machine.default_gateway is None:
        return None
    nic = next(nic for nic in machine.nics if nic.label == machine.default_nic)
    if nic.netdev is None:
        raise MachineError(f"{machine.name}.default_route", f"{nic.label} has no netdev", "name another NIC")
    return nic, IPv4Address(machine.default_gateway)


def _routes(machine: Machine, up: Iterable[Nic], gateway: tuple[Nic, IPv4Address] | None) -> str:
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    rows = []
    if gateway is not None:
        rows.append((0, _route(gateway[0], IPv4Network("0.0.0.0/0"), gateway[1], machine.default_metric)))
    for nic in up:
        for own in nic.ipv4:
            rows.append((int(own.network.network_address), _route(nic, own.network, None, 0)))
    lines = [head, *(text for _, text in sorted(rows, key=lambda row: row[0]))]
    return "".join(f"{line:<127}\n" for line in lines)


def _route(nic: Nic, network: IPv4Network, via: IPv4Address | None, metric: int) -> str:
    flags = _UP if via is None else _UP | _GATEWAY
    return (
        f"{nic.netdev}\t{_swapped(network.network_address)}\t{_swapped(via or IPv4Address(0))}\t{flags:04X}\t0\t0\t"
        f"{metric}\t{_swapped(network.netmask)}\t0\t0\t0"
    )


def _swapped(address: IPv4Address) -> str:
    # Network byte order printed as an integer of a little-endian machine.
    return f"{int.from_bytes(address.packed, 'little'):08X}"


# ----- the IPv4 trie ------------------------------------------------------------------------------------------------


def prefixes(up: Iterable[Nic], gateway: tuple[Nic, IPv4Address] | None) -> list[Prefix]:
    """What the main and the local table hold, as one trie (they are one until a rule is added)."""
    found = {
        Prefix(int(IPv4Address("127.0.0.0")), 8, "host", "LOCAL"),
        Prefix(int(IPv4Address("127.0.0.1")), 32, "host", "LOCAL"),
        Prefix(int(IPv4Address("127.255.255.255")), 32, "link", "BROADCAST"),
    }
    if gateway is not None:
        found.add(Prefix(0, 0, "universe", "UNICAST"))
    for nic in up:
        for own in nic.ipv4:
            network = own.network
            found.add(Prefix(int(own.ip), 32, "host", "LOCAL"))
            if network.prefixlen < 32:
                found.add(Prefix(int(network.network_address), network.prefixlen, "link", "UNICAST"))
            if network.prefixlen < 31:
                found.add(Prefix(int(network.broadcast_address), 32, "link", "BROADCAST"))
    return sorted(found)


def fib_trie(found: Iterable[Prefix]) -> str:
    """The dump of the trie, twice: as Main and as Local.

    Leaves and their aliases are the kernel's. An inner node is inflated while more than half of its children are in
    use; what the kernel does also depends on the order of insertion, and no reader takes anything from inner nodes.
    """
    leaves: dict[int, list[Prefix]] = {}
    for prefix in found:
        leaves.setdefault(prefix.key, []).append(prefix)
    text = _node(sorted(leaves), leaves, 0)
    return "".join(f"{table}:\n{text}" for table in ("Main", "Local"))


def _node(keys: list[int], leaves: dict[int, list[Prefix]], depth: int) -> str:
    if len(keys) == 1:
        return _leaf(keys[0], leaves[keys[0]], depth)
    top, bits = _span(keys)
    low = top + 1 - bits
    children = _children(keys, low)
    full = sum(_is_full(child, low) for child in children.values())
    network = IPv4Address(keys[0] >> (top + 1) << (top + 1) if top < 31 else 0)
    head = f"{'   ' * depth}  +-- {network}/{31 - top} {bits} {full} {(1 << bits) - len(children)}\n"
    return head + "".join(_node(child, leaves, depth + 1) for _, child in sorted(children.items()))


def _span(keys: list[int]) -> tuple[int, int]:
    """The highest bit in which the keys differ, and how many bits the node takes from there."""
    top = (keys[0] ^ keys[-1]).bit_length() - 1
    bits = 1
    while top + 1 - bits > 0:
        low = top + 1 - bits
        children = _children(keys, low)
        used = len(children) + sum(_is_full(child, low) for child in children.values())
        if 100 * used <= 50 * (1 << bits):
            break
        bits += 1
    return top, bits


def _children(keys: list[int], low: int) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for key in keys:
        children.setdefault(key >> low, []).append(key)
    return children


def _is_full(keys: list[int], low: int) -> bool:
    """A child node that skips no bit."""
    return len(keys) > 1 and (keys[0] ^ keys[-1]).bit_length() == low


def _leaf(key: int, own: list[Prefix], depth: int) -> str:
    indent = "   " * depth
    aliases = sorted(own, key=lambda prefix: (-prefix.length, prefix.scope))
    lines = [f"{indent}  |-- {IPv4Address(key)}"]
    lines += [f"{indent}     /{prefix.length} {prefix.scope} {prefix.kind}" for prefix in aliases]
    return "".join(f"{line}\n" for line in lines)


# ----- devices and IPv6 ---------------------------------------------------------------------------------------------


def _devices(machine: Machine) -> str:
    head = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast"
        "|bytes    packets errs drop fifo colls carrier compressed\n"
    )
    # net/core/net-procfs.c: dev_seq_printf_stats
    widths = (8, 8, 5, 5, 5, 6, 11, 10, 9, 8, 5, 5, 5, 6, 8, 11)
    row = "".join(f"{0:{width}d}" for width in widths)
    return head + "".join(f"{name:>6}:{row}\n" for name in interface_numbers(machine))


def _addresses6(nic: Nic) -> list[tuple[IPv6Address, int, int]]:
    """(address, prefix length, scope): 0x20 is link, 0x00 global."""
    local = [] if nic.layer == "InfiniBand" else [(link_local(nic.mac), 64, 0x20)]
    return local + [(own.ip, own.network.prefixlen, 0x00) for own in nic.ipv6]


def _inet6(machine: Machine, up: Iterable[Nic]) -> str:
    numbers = interface_numbers(machine)
    lines = [f"{1:032x} 01 80 10 80 {'lo':>8}\n"]
    for nic in up:
        for address, length, scope in _addresses6(nic):
            index = numbers[str(nic.netdev)]
            lines.append(f"{int(address):032x} {index:02x} {length:02x} {scope:02x} 80 {nic.netdev:>8}\n")
    return "".join(lines)


def _routes6(up: Iterable[Nic]) -> str:
    rows = [_route6(1, 128, _LOCAL6, "lo")]
    for nic in up:
        for address, length, _ in _addresses6(nic):
            network = int(address) >> (128 - length) << (128 - length)
            rows.append(_route6(network, length, "00000100 00000001 00000000 00000001", nic.netdev))
            rows.append(_route6(int(address), 128, _LOCAL6, nic.netdev))
        rows.append(_route6(0xFF << 120, 8, "00000100 00000002 00000000 00000001", nic.netdev))
    rows.append(_route6(0, 0, "ffffffff 00000001 00000000 00200200", "lo"))
    return "".join(rows)


_LOCAL6 = "00000000 00000002 00000000 80200001"


def _route6(network: int, length: int, counters: str, netdev: str | None) -> str:
    """counters: metric, references, use and flags."""
    return f"{network:032x} {length:02x} {0:032x} 00 {0:032x} {counters} {netdev:>8}\n"
