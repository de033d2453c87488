"""The rails as they are on the network: addresses, answers, ways back, MTU, links, bonds, GIDs.

Every question is put to the facts of this node alone; what only several nodes show is the fleet's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Optional

from ...plan.gid import Range, pick, range_of
from ...plan.rail_network import RDMA_MTUS, ROCE_BYTES, rdma_mtu
from ..lldp import frame_sizes
from ..model import Facts, Finding, Nic, Plan
from .answer import Answer, listed
from .ip_tables import LOCAL, MAIN, Rule, Way, read_rules, read_ways

# Ethernet's header with one VLAN tag is not counted: header and checksum are.
FRAME_OVERHEAD = 14 + 4
GID = "rails.gid"
_NOT_UP = ("down", "init", "armed")
_GID_INDEX, _ADDR_RANGE = "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE"


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """Answers on the ports that the plan has as rails. Raises InputError for tools that print nonsense."""
    known = {nic.name: nic for nic in facts.nics}
    planned = [nic for nic in plan.nics if nic.role in ("rail", "second-port")]
    rails = [known[nic.name] for nic in planned if nic.name in known]
    yield from _links([nic.name for nic in planned], known)
    yield from _speeds(rails)
    ethernet = [nic for nic in rails if nic.link_layer == "Ethernet"]
    if ethernet:
        yield from _bonds(ethernet, facts)
        yield from _duplicates(ethernet)
        mode = _mode(plan)
        yield from _subnets(ethernet, facts, mode)
        yield from _ways_back(ethernet, facts, mode)
        yield from _mtus(ethernet, facts)
        yield from _gids(ethernet, plan)


def _mode(plan: Plan) -> Optional[str]:
    """How the plan addresses the rails, "subnet" or "flat"; None where it leaves that alone."""
    part = plan.slices.get("rail_network")
    entries = () if part is None else part.entries
    return next((str(entry.get("mode")) for entry in entries if entry.get("kind") == "network"), None)


def _name(nic: Nic) -> str:
    return nic.netdev or nic.name


def _answer(code: str, findings: Sequence[Finding], why: str = "") -> Iterator[Answer]:
    """An answer for each finding, or one that all is well."""
    yield from (Answer(code, finding) for finding in findings)
    if not findings:
        yield Answer(code, why=why)


# ----- link, speed, bond ---------------------------------------------------------------------------------------------


def _links(planned: Sequence[str], known: dict[str, Nic]) -> Iterator[Answer]:
    code = "rails.link"
    found = []
    for name in planned:
        nic = known.get(name)
        if nic is not None and nic.state not in _NOT_UP:
            continue
        why = (
            "is a rail by the plan, and is not there"
            if nic is None
            else f"is a rail by the plan, and is {nic.state}"
        )
        remedy = "is the card on the bus (`lspci -d 15b3:`), and its driver loaded?"
        if nic is not None:
            remedy = f"check cable, transceiver and switch port; `ip -s link show {_name(nic)}`"
        found.append(Finding(code, "error", name, why, remedy))
    if planned:
        yield from _answer(code, found, f"{len(planned)} rails are up")


def _speeds(rails: Sequence[Nic]) -> Iterator[Answer]:
    code = "rails.speed"
    rates = [nic.rate for nic in rails if nic.rate is not None]
    if not rates:
        return
    most = max(rates)
    found = [
        Finding(
            code,
            "error",
            nic.name,
            f"runs at {nic.rate / 1000:g} Gb/s, where the fastest rail has {most / 1000:g} Gb/s: a job runs at the "
            "speed of its slowest rail",
            f"check transceiver, cable and the switch port's speed and FEC (`ethtool {_name(nic)}`)",
        )
        for nic in rails
        if nic.rate is not None and nic.rate < most
    ]
    yield from _answer(code, found, f"all at {most / 1000:g} Gb/s")


def _bonds(rails: Sequence[Nic], facts: Facts) -> Iterator[Answer]:
    code = "rails.bond"
    kinds = {master.name: master.kind for master in facts.network.masters}
    members: dict[str, list[str]] = {}
    for nic in rails:
        if nic.master is not None and kinds.get(nic.master) in ("bond", "team"):
            members.setdefault(nic.master, []).append(_name(nic))
    found = [
        Finding(
            code,
            "warning",
            master,
            f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} in the {kinds[master]} {master}, and the plan has "
            "rails there: a bond hashes flows over its members, and a GPU's traffic leaves by another GPU's NIC",
            f"take the members out of {master} and give each its own address; accept this where the bond is meant "
            "(two ports of one card to two leaves)",
        )
        for master, names in sorted(members.items())
    ]
    yield from _answer(code, found, "no rail is in a bond")


# ----- addresses -----------------------------------------------------------------------------------------------------


def _interfaces(nic: Nic) -> list[ipaddress.IPv4Interface]:
    """The IPv4 addresses of a port, with their networks."""
    found = []
    for text in nic.addresses:
        try:
            found.append(ipaddress.IPv4Interface(text))
        except ValueError:
            continue
    return found


def _duplicates(rails: Sequence[Nic]) -> Iterator[Answer]:
    """One address on two ports: proc/net shows it once, and the GID tables show it twice."""
    code = "rails.duplicate_address"
    holders: dict[str, list[str]] = {}
    for nic in rails:
        held = {entry.gid for entry in nic.gids if entry.kind == "v2" and not entry.gid.startswith("fe80:")}
        for gid in sorted(held):
            holders.setdefault(gid, []).append(_name(nic))
    found = []
    for gid, names in holders.items():
        if len(names) > 1:
            address = _address_text(gid)
            found.append(
                Finding(
                    code,
                    "error",
                    ", ".join(names),
                    f"{address} is on {' and on '.join(names)}: which of them answers is a matter of chance",
                    f"take it off all but one, there and in the configuration (`ip address show dev {names[-1]}`)",
                )
            )
    yield from _answer(code, found, "each address is on one rail")


def _address_text(gid: str) -> str:
    try:
        whole = ipaddress.IPv6Address(gid)
    except ValueError:
        return gid
    return str(whole.ipv4_mapped or whole)


def _subnets(rails: Sequence[Nic], facts: Facts, mode: Optional[str]) -> Iterator[Answer]:
    """Rails in one subnet: a fault where each has its own by the plan, and else a matter of how they answer for it."""
    shared: dict[ipaddress.IPv4Network, list[Nic]] = {}
    for nic in rails:
        for network in dict.fromkeys(interface.network for interface in _interfaces(nic)):
            shared.setdefault(network, []).append(nic)
    several = {network: nics for network, nics in shared.items() if len(nics) > 1}
    code = "rails.one_subnet"
    if mode == "subnet":
        yield from _answer(
            code, [_one_subnet(network, nics) for network, nics in several.items()], "one subnet a rail"
        )
        return
    found: list[Finding] = []
    dark: list[str] = []
    for network, nics in several.items():
        loose = _loose(nics, facts, dark)
        if loose:
            found.append(_flux(network, nics, loose))
    code = "rails.arp_flux"
    if found or not dark:
        yield from _answer(code, found, "rails of one subnet answer and speak for themselves alone")
    else:
        yield Answer(code, seen=False, why=f"the facts do not hold {', '.join(dark[:4])}")


def _one_subnet(network: ipaddress.IPv4Network, nics: Sequence[Nic]) -> Finding:
    return Finding(
        "rails.one_subnet",
        "error",
        ", ".join(_name(nic) for nic in nics),
        f"these rails share {network}, where each has a subnet of its own by the policy: the kernel sends to all of "
        "them by the first one",
        "correct the addresses; where one flat subnet is meant, say so in the policy, and the kernel is told to keep "
        "the rails apart",
    )


def _loose(nics: Sequence[Nic], facts: Facts, dark: list[str]) -> list[str]:
    """Sysctls that let rails of one subnet answer or speak for each other. The larger of `all` and the device's own
    counts (Documentation/networking/ip-sysctl.rst)."""
    said: list[str] = []
    for nic in nics:
        for key, least, fault in (
            ("arp_ignore", 1, "answers for the addresses of other rails"),
            ("arp_announce", 1, "asks in the name of other rails"),
        ):
            value = _in_force(facts, nic, key, dark)
            if value is not None and value < least:
                said.append(f"{_name(nic)} {fault} ({key} {value})")
        strict = _in_force(facts, nic, "rp_filter", dark)
        if strict == 1:
            said.append(f"{_name(nic)} drops answers that it did not ask for (rp_filter 1)")
    return said


def _in_force(facts: Facts, nic: Nic, key: str, dark: list[str]) -> Optional[int]:
    values = []
    for scope in ("all", _name(nic).replace(".", "/")):
        name = f"net.ipv4.conf.{scope}.{key}"
        text = facts.host.sysctls.get(name, "")
        if not text.isdecimal():
            dark.append(name)
            return None
        values.append(int(text))
    return max(values)


def _flux(network: ipaddress.IPv4Network, nics: Sequence[Nic], loose: Sequence[str]) -> Finding:
    return Finding(
        "rails.arp_flux",
        "error",
        ", ".join(_name(nic) for nic in nics),
        f"these rails share {network}, and {listed(loose)}: peers learn the wrong NIC, and one carries all (ARP flux)",
        "let the policy manage the rails' network in flat mode (arp_ignore 2, arp_announce 2, rp_filter 2 on each), "
        "or give each rail a subnet of its own; then `ip neigh flush all` on the peers",
    )


# ----- ways back -----------------------------------------------------------------------------------------------------


def _ways_back(rails: Sequence[Nic], facts: Facts, mode: Optional[str]) -> Iterator[Answer]:
    """Whether what a rail's address sends leaves by that rail beyond its own subnet."""
    code = "rails.return_route"
    addressed = [(nic, interface) for nic in rails for interface in _interfaces(nic)[:1]]
    if len(addressed) < 2:
        return
    rules, ways = read_rules(facts), read_ways(facts)
    if rules is None or ways is None:
        yield Answer(code, seen=False, why="ip did not tell the rules and routes of the node")
        return
    # The kernel has a local route for every address that it answers for. Without one `ip` spoke of another network
    # namespace, or the port is down, which is told elsewhere.
    answered = {way.destination.network_address for way in ways if way.table == LOCAL}
    there = [(nic, interface) for nic, interface in addressed if interface.ip in answered]
    if not there:
        yield Answer(code, seen=False, why="ip speaks of a network without any of the rails' addresses")
        return
    found = []
    for nic, interface in there:
        # A link of two addresses holds no peer: everybody is beyond the leaf.
        needed = mode is not None or interface.network.prefixlen >= 30
        if needed and not _has_way(nic, interface, rules, ways):
            found.append(
                Finding(
                    code,
                    "error",
                    _name(nic),
                    f"nothing leads what {interface.ip} sends out by {_name(nic)}: no rule `from {interface.ip}` to a "
                    "table with a route there, so it leaves by the default route, or by another rail",
                    "let the policy manage the rails' network, or add for this rail a table with its routes and "
                    f"`ip rule add from {interface.ip} lookup TABLE`",
                )
            )
    yield from _answer(code, found, "each rail has its own way out")


def _has_way(
    nic: Nic, interface: ipaddress.IPv4Interface, rules: Sequence[Rule], ways: Sequence[Way]
) -> bool:
    device = _name(nic) if nic.master is None else nic.master
    tables = {
        rule.table
        for rule in rules
        if rule.table not in (None, MAIN, "253", LOCAL)
        and rule.source is not None
        and interface.ip in rule.source
    }
    own = [way for way in ways if device in way.devices]
    if any(way.table in tables for way in own):
        return True
    # Routes to the peers in the main table serve too, as long as nothing else has them.
    return any(way.table == MAIN and not way.direct and way.destination.prefixlen for way in own)


# ----- MTU -----------------------------------------------------------------------------------------------------------


def _mtus(rails: Sequence[Nic], facts: Facts) -> Iterator[Answer]:
    code = "rails.mtu"
    sizes = {_name(nic): nic.mtu for nic in rails if nic.mtu is not None}
    if not sizes:
        yield Answer(code, seen=False, why="the facts hold no MTU")
        return
    largest = max(sizes.values())
    switches = frame_sizes(facts)
    found = []
    for netdev, mtu in sizes.items():
        heard = switches.get(netdev)
        if mtu < largest:
            why = (
                f"has MTU {mtu}, where another rail has {largest}: large messages fail where small ones pass"
            )
            found.append(_mtu(netdev, why, f"`ip link set {netdev} mtu {largest}`, and in its configuration"))
        elif rdma_mtu(mtu) != RDMA_MTUS[0]:
            why = f"MTU {mtu} admits an RDMA MTU of {rdma_mtu(mtu) or 'nothing'}, and NICs can do {RDMA_MTUS[0]}"
            remedy = f"9000 on every rail and 9216 on the switches ({RDMA_MTUS[0] + ROCE_BYTES} are enough)"
            found.append(_mtu(netdev, why, remedy))
        elif heard is not None and heard[1] < mtu + FRAME_OVERHEAD:
            why = f"MTU {mtu} makes frames of {mtu + FRAME_OVERHEAD} bytes, and {heard[0]} takes {heard[1]} on its port"
            found.append(_mtu(netdev, why, f"set the MTU of that port of {heard[0]} to 9216"))
    yield from _answer(code, found, f"{largest} on every rail, RDMA MTU {rdma_mtu(largest)}")


def _mtu(netdev: str, why: str, remedy: str) -> Finding:
    return Finding("rails.mtu", "warning", netdev, why, remedy)


# ----- GIDs ----------------------------------------------------------------------------------------------------------


def _gids(rails: Sequence[Nic], plan: Plan) -> Iterator[Answer]:
    code = GID
    shown = [nic for nic in rails if nic.gids]
    if not shown:
        yield Answer(code, seen=False, why="the facts hold no GID")
        return
    text = plan.nccl.get(_ADDR_RANGE)
    wanted: Optional[Range] = None if text is None else range_of(text, f"plan.nccl.{_ADDR_RANGE}")
    fixed = plan.nccl.get(_GID_INDEX, "")
    found = []
    for nic in shown:
        chosen = pick(nic, wanted)
        if chosen.index is None:
            remedy = "give the port its address (`ip -br address`); or name the rails' range in policy.nccl.addr_range"
            found.append(Finding(code, "error", nic.name, chosen.why, remedy))
        elif fixed and fixed != str(chosen.index):
            why = f"NCCL is told GID index {fixed}, and {chosen.address} is at {chosen.index} now"
            remedy = (
                "plan again (an index moves with a flap or a second address); NCCL 2.21 or later needs none"
            )
            found.append(Finding(code, "error", nic.name, why, remedy))
    yield from _answer(code, found, f"{len(shown)} rails have one GID each")
