"""The part of the policy that is about the rails' names and addresses. Without it the rails stay as they are."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from .codec import InputError
from .values import one_of, within

MODES = ("subnet", "flat")
BACKENDS = ("networkd", "netplan", "networkmanager")
RDMA_NAMES = ("kernel", "fixed", "as-is")
Interface = Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]
# A name has at most 15 bytes (IFNAMSIZ, include/uapi/linux/if.h): prefix, two digits and "p2" behind it.
_PREFIX = re.compile(r"[a-z][a-z0-9]{0,9}[a-z]|[a-z]")
# What the kernel and udev make names from (systemd.net-naming-scheme(7)), what RDMA drivers do (drivers/infiniband),
# and what virtual devices are commonly called.
_TAKEN_WORDS = """
    eth en ib sl wl ww lo usb wlan wwan mlx roce bnxt irdma hfi rxe bond team br virbr docker veth tun tap dummy vlan
    vxlan cali cni flannel ifb gre sit ip macvlan ipvlan vrf wg nlmon lxc podman cilium ovs
"""
_TAKEN = tuple(_TAKEN_WORDS.split())
_MOST_RAILS = 64
# Tables 253 to 255 are the kernel's own (include/uapi/linux/rtnetlink.h).
_TABLES = (1, 252 - _MOST_RAILS)
# IPv4 needs 68 bytes, and 9216 is what switches of a fabric take, headers and all.
_MTUS = (1280, 9216)
_LONGEST_SECONDS = 3600


@dataclass(frozen=True)
class RailAddress:
    """One rail's address with its prefix length ("10.100.0.2/24"), and the leaf's, where the rail leads further.

    port: 1 for the first port of the rail's card, 2 for the next.
    """

    rail: int
    address: str
    gateway: Optional[str] = None
    port: int = 1


@dataclass(frozen=True)
class RailsPolicy:
    """Names and addresses of the rails.

    prefix: netdevs are called by it and the rail's number ("rail"); None leaves the names as they are. rdma_names
    (acted on with a prefix only): "kernel" keeps mlx5_0, which a tenant's own NCCL_IB_HCA=mlx5 matches; "fixed" names
    the RDMA devices like the netdevs; "as-is" leaves them to the distribution. mode: "subnet" (each rail its own) or
    "flat" (one for all). addresses: without any the rails' addresses are left alone. mtu: bytes. table: rail N's routes
    are in table number table + N. nodes: how many share the rails, for the limits of the neighbour table. backend: what
    configures the network; None takes the one that runs. confirm_seconds: a change after which nobody comes back within
    that time is undone; 0 is never.
    """

    prefix: Optional[str] = None
    rdma_names: str = "kernel"
    mode: str = "subnet"
    addresses: tuple[RailAddress, ...] = ()
    mtu: int = 9000
    table: int = 100
    nodes: Optional[int] = None
    backend: Optional[str] = None
    confirm_seconds: int = 120


def must_be_sound(rails: RailsPolicy, where: str) -> None:
    """Raises InputError for what cannot be written or contradicts itself."""
    _prefix(rails.prefix, f"{where}.prefix")
    for field, known in (("rdma_names", RDMA_NAMES), ("mode", MODES), ("backend", BACKENDS)):
        one_of(getattr(rails, field), known, f"{where}.{field}")
    within(rails.mtu, *_MTUS, f"{where}.mtu")
    within(rails.table, *_TABLES, f"{where}.table")
    within(rails.confirm_seconds, 0, _LONGEST_SECONDS, f"{where}.confirm_seconds")
    within(rails.nodes, 1, 1_000_000, f"{where}.nodes")
    _addresses(rails, f"{where}.addresses")


def _prefix(prefix: Optional[str], where: str) -> None:
    if prefix is None:
        return
    if not _PREFIX.fullmatch(prefix):
        raise InputError(
            where,
            f"found {prefix!r}",
            "expected up to eleven small letters and digits that begin and end with a letter, like rail",
        )
    clash = next((taken for taken in _TAKEN if prefix.startswith(taken)), None)
    if clash is not None:
        raise InputError(
            where,
            f"{prefix!r} begins like names that the kernel, udev or a driver gives ({clash}...)",
            "take a name of your own, like rail: two devices that want one name leave one of them without it",
        )


def _addresses(rails: RailsPolicy, where: str) -> None:
    seen: dict[tuple[int, int], int] = {}
    held: dict[str, int] = {}
    networks: list[tuple[int, Interface]] = []
    for number, entry in enumerate(rails.addresses):
        place = f"{where}[{number}]"
        within(entry.rail, 0, _MOST_RAILS - 1, f"{place}.rail")
        within(entry.port, 1, 4, f"{place}.port")
        if (entry.rail, entry.port) in seen:
            first = seen[entry.rail, entry.port]
            raise InputError(place, f"rail {entry.rail} has an address already, in {where}[{first}]")
        seen[entry.rail, entry.port] = number
        interface = interface_of(entry, place)
        if str(interface.ip) in held:
            raise InputError(
                f"{place}.address",
                f"{interface.ip} is rail {rails.addresses[held[str(interface.ip)]].rail}'s too",
            )
        held[str(interface.ip)] = number
        networks.append((number, interface))
    _must_fit_mode(rails, where, networks)


def interface_of(entry: RailAddress, where: str) -> Interface:
    """The address with its network. Raises InputError for what no rail can have, and for a gateway outside of it."""
    try:
        interface = ipaddress.ip_interface(entry.address)
    except ValueError:
        interface = None
    if interface is None or "/" not in entry.address:
        raise InputError(
            f"{where}.address",
            f"found {entry.address!r}",
            "expected an address and a length like 10.100.0.2/24",
        )
    ip, network = interface.ip, interface.network
    if ip.version != 4:
        raise InputError(f"{where}.address", f"{entry.address} is IPv6", "rails are addressed by IPv4")
    if ip.is_loopback or ip.is_multicast or ip.is_unspecified or ip.is_link_local or network.prefixlen == 0:
        raise InputError(f"{where}.address", f"{entry.address} is no address of a host in a network")
    # RFC 3021: a network of two addresses has neither of them to spare.
    if network.prefixlen < 31 and ip in (network.network_address, network.broadcast_address):
        raise InputError(f"{where}.address", f"{entry.address} is its network's own or broadcast address")
    if entry.gateway is not None:
        _gateway(entry.gateway, interface, f"{where}.gateway")
    return interface


def _gateway(text: str, interface: Interface, where: str) -> None:
    try:
        gateway = ipaddress.ip_address(text)
    except ValueError:
        raise InputError(where, f"found {text!r}", "expected an address like 10.100.0.1") from None
    if gateway not in interface.network or gateway == interface.ip:
        raise InputError(
            where, f"{text} is no other host of {interface.network}", "expected the leaf's address there"
        )


def _must_fit_mode(rails: RailsPolicy, where: str, networks: list[tuple[int, Interface]]) -> None:
    if rails.mode == "flat":
        odd = next((n for n, interface in networks if interface.network != networks[0][1].network), None)
        if odd is not None:
            raise InputError(
                f"{where}[{odd}].address",
                f"{rails.addresses[odd].address} is in another network than {rails.addresses[0].address}",
                'in mode "flat" all rails are in one; mode "subnet" has one for each rail',
            )
        return
    for first, second in _pairs(networks):
        if rails.addresses[first[0]].rail != rails.addresses[second[0]].rail and first[1].network.overlaps(
            second[1].network
        ):
            raise InputError(
                f"{where}[{second[0]}].address",
                f"{second[1]} and {first[1]} are in one network, and they are two rails",
                'in mode "subnet" each rail has its own; mode "flat" has one for all',
            )


def _pairs(
    found: list[tuple[int, Interface]],
) -> Iterator[tuple[tuple[int, Interface], tuple[int, Interface]]]:
    for n, one in enumerate(found):
        for other in found[n + 1 :]:
            yield one, other
