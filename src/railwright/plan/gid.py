"""Which GID a RoCE port uses: its index is a coincidence, so NCCL is told the addresses, or the index is computed.

NCCL chooses by itself since 2.21 (src/transport/net_ib/connect.cc, ncclIbGetGidIndex): RoCE v2, no link-local address,
of one family (AF_INET unless told) and in one range. Before that it takes one index for all ports.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional, Union

from ..node.model import Finding, Gid, InputError, Nic, Policy

CHOOSES_SINCE = (2, 21)

Range = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]
Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Version = Optional[tuple[int, ...]]
Chosen = tuple[dict[str, str], list[Finding]]


@dataclass(frozen=True)
class Pick:
    """The GID of one port, as it is now. index None: no single one can be named, and `why` says why."""

    nic: Nic
    index: Optional[int] = None
    address: Optional[Address] = None
    why: str = ""


def check(policy: Policy) -> None:
    """Raises InputError for a range that NCCL cannot read."""
    _range(policy)


def pick(nic: Nic, wanted: Optional[Range], local: Collection[Address] = ()) -> Pick:
    """The one RoCE v2 entry of this port that stands for an address of its own netdev, and of `wanted` where given.

    local: the addresses of this network namespace. They decide where the port's netdev lives in another one: a
    container sees the whole table of the port, and can send from its own addresses alone. IPv4 comes before IPv6, as
    NCCL has it.
    """
    own = {nic.netdev, nic.master, None}
    found: dict[int, Address] = {}
    for entry in nic.gids:
        address = _address(entry) if entry.kind == "v2" else None
        if address is None or (wanted is not None and not _inside(address, wanted)):
            continue
        if entry.netdev in own if nic.netdev is not None else not local or address in local:
            found[entry.index] = address
    of_ipv4 = {index: address for index, address in found.items() if address.version == 4}
    usable = of_ipv4 or found
    if len(usable) == 1:
        index, address = usable.popitem()
        return Pick(nic, index, address)
    inside = "" if wanted is None else f" in {wanted}"
    if usable:
        said = ", ".join(f"{index} ({usable[index]})" for index in sorted(usable))
        return Pick(nic, why=f"several GIDs of {nic.name} would do: {said}")
    if not nic.gids:
        return Pick(nic, why=f"{nic.name} shows no GID")
    holder = nic.netdev or "this network namespace"
    return Pick(nic, why=f"no RoCE v2 GID of {nic.name} stands for an address of {holder}{inside}")


def range_of(text: str, where: str) -> Range:
    """A range of addresses as NCCL reads it. Raises InputError with the place."""
    form = "expected a form like 10.1.0.0/16"
    try:
        found = ipaddress.ip_network(text)
    except ValueError as error:
        raise InputError(where, str(error), form) from None
    if found.prefixlen == 0:
        raise InputError(where, "every address is in it", form)
    return found


def _range(policy: Policy) -> Optional[Range]:
    text = policy.nccl.addr_range
    return None if text is None else range_of(text, "policy.nccl.addr_range")


def _inside(address: Address, wanted: Range) -> bool:
    return address.version == wanted.version and address in wanted


def choose(policy: Policy, version: Version, nics: Sequence[Nic]) -> Chosen:
    """NCCL's variables for the GID of these rail ports, and what is wrong with their GIDs."""
    roce = [nic for nic in nics if nic.link_layer == "Ethernet"]
    if policy.nccl.gid_index is not None:
        index = policy.nccl.gid_index
        return {"NCCL_IB_GID_INDEX": str(index)}, _wrong_index(index, roce)
    if not roce:
        return {}, []
    wanted = _range(policy)
    usable = {nic.name: _usable(nic, wanted) for nic in roce if nic.gids}
    lost = [_without(name, wanted) for name, gids in usable.items() if not gids]
    if version is not None and version < CHOOSES_SINCE:
        values, found = _computed(policy, roce, usable)
        return values, lost + found
    values = {}
    if wanted is not None:
        values["NCCL_IB_ADDR_RANGE"] = str(wanted)
    families = {address.version for gids in usable.values() for address in gids.values()}
    if (wanted is not None and wanted.version == 6) or families == {6}:
        values["NCCL_IB_ADDR_FAMILY"] = "AF_INET6"
    return values, lost


def _usable(nic: Nic, wanted: Optional[Range]) -> dict[int, Address]:
    """RoCE v2 entries of this port by index, IPv4 ones alone where there are any."""
    own = {nic.netdev, nic.master, None}
    found: dict[int, Address] = {}
    for entry in nic.gids:
        if entry.kind != "v2" or (wanted is None and entry.netdev not in own):
            continue
        address = _address(entry)
        if address is None:
            continue
        if wanted is None or _inside(address, wanted):
            found[entry.index] = address
    of_ipv4: dict[int, Address] = {index: address for index, address in found.items() if address.version == 4}
    return of_ipv4 or found


def _address(entry: Gid) -> Optional[Address]:
    """The address that a GID stands for; None for one that is not set, link-local or no GID at all."""
    if entry.gid.startswith("fe80:"):
        return None
    try:
        whole = ipaddress.IPv6Address(entry.gid)
    except ValueError:
        return None
    if whole.ipv4_mapped is not None:
        return whole.ipv4_mapped
    return None if whole.is_link_local or whole.is_unspecified else whole


def _wrong_index(index: int, roce: Sequence[Nic]) -> list[Finding]:
    found = []
    for nic in roce:
        entry = next((gid for gid in nic.gids if gid.index == index), None)
        if nic.gids and (entry is None or entry.kind != "v2" or _address(entry) is None):
            what = "is not set" if entry is None else f"is {entry.gid}, {entry.kind or 'kind unknown'}"
            found.append(
                _finding(
                    nic.name,
                    f"policy.nccl.gid_index is {index}, and that GID of {nic.name} {what}: no RoCE v2 entry of an "
                    "address",
                    "leave policy.nccl.gid_index out and give policy.nccl.addr_range",
                )
            )
    return found


def _without(name: str, wanted: Optional[Range]) -> Finding:
    inside = "" if wanted is None else f" in {wanted}"
    return _finding(
        name,
        f"no RoCE v2 GID of {name} stands for an address{inside}: NCCL would send from a link-local one and time out",
        "give the port its address (`ip -br address`), and look again with `show_gids`",
    )


def _computed(policy: Policy, roce: Sequence[Nic], usable: Mapping[str, Mapping[int, Address]]) -> Chosen:
    """One index that is right on every port, for a NCCL that cannot choose."""
    version = policy.nccl.version
    unseen = [nic.name for nic in roce if not nic.gids]
    if unseen:
        why = f"NCCL {version} takes a fixed GID index, and this witness does not show the GIDs"
        return {}, [_finding(", ".join(unseen), why, "give the node's facts, or policy.nccl.gid_index")]
    common = set.intersection(*(set(usable[nic.name]) for nic in roce))
    if len(common) == 1:
        return {"NCCL_IB_GID_INDEX": str(common.pop())}, []
    if any(not usable[nic.name] for nic in roce):
        return {}, []
    said = "; ".join(f"{nic.name} {', '.join(map(str, sorted(usable[nic.name])))}" for nic in roce)
    why = f"NCCL {version} takes one GID index for all ports, and they have no single one in common: {said}"
    remedy = "run NCCL 2.21 or later, which chooses by itself; or give policy.nccl.addr_range where ports have several"
    return {}, [_finding(", ".join(nic.name for nic in roce), why, remedy)]


def _finding(where: str, why: str, remedy: str) -> Finding:
    return Finding("nccl.gid", "warning", where, why, remedy)
