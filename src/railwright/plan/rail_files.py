"""The exact bytes that each network back-end is given for the rails.

A port is meant by its hardware address, which all three know and no name changes, so that a file holds before and after
the rails are named. Where netplan is told an MTU it writes a .link file that comes before all others and leaves the
device the kernel's name, so a udev rule gives it the MTU, and the sysctls that no back-end knows; also to a device that
comes later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from ..node.model.rails_policy import Interface
from .entries import HEADER
from .rail_ports import Place

NETPLAN = "/etc/netplan/70-railwright-rails.yaml"
UDEV = "/etc/udev/rules.d/90-railwright-rails.rules"
# Identities of our NetworkManager profiles: the same on every node, as the names of the files are.
_PROFILES = bytes.fromhex("7c3f6c0e9d0b5a518d0f2a6f0c1b7e55")
_EVERYWHERE = "0.0.0.0/0"


@dataclass(frozen=True)
class Addressed:
    """A rail's port with what it is given. gateway: the leaf's address, None where the rail leads no further."""

    place: Place
    interface: Interface
    gateway: Optional[str]
    table: int
    priority: int
    mtu: int

    @property
    def key(self) -> str:
        """How its files are called, whatever its netdev is."""
        return self.place.name("rail")

    @property
    def address(self) -> str:
        return str(self.interface.ip)

    @property
    def network(self) -> str:
        return str(self.interface.network)


def networkd_path(port: Addressed) -> str:
    """Where a port's .network file lies."""
    return f"/etc/systemd/network/70-railwright-{port.key}.network"


def networkd(port: Addressed) -> str:
    """A .network file (systemd.network(5)).

    The configuration stays while the carrier is away: a link that flaps then keeps its address, and with it the place
    of its GID in the port's table. A dead cable must not hold up the boot either.
    """
    lines = [
        f"{HEADER}[Match]",
        f"MACAddress={port.place.nic.mac}",
        "Type=ether",
        "",
        "[Link]",
        f"MTUBytes={port.mtu}",
        "RequiredForOnline=no",
        "",
        "[Network]",
        f"Address={port.interface}",
        "DHCP=no",
        "IPv6AcceptRA=no",
        "ConfigureWithoutCarrier=yes",
        "",
        "[Route]",
        f"Destination={port.network}",
        "Scope=link",
        f"PreferredSource={port.address}",
        f"Table={port.table}",
    ]
    if port.gateway is not None:
        lines += [
            "",
            "[Route]",
            f"Destination={_EVERYWHERE}",
            f"Gateway={port.gateway}",
            f"PreferredSource={port.address}",
            f"Table={port.table}",
        ]
    else:
        lines += ["", "[Route]", f"Destination={_EVERYWHERE}", "Type=unreachable", f"Table={port.table}"]
    lines += [
        "",
        "[RoutingPolicyRule]",
        f"From={port.address}/32",
        f"Table={port.table}",
        f"Priority={port.priority}",
    ]
    return "\n".join(lines) + "\n"


def netplan(ports: Sequence[Addressed]) -> str:
    """One YAML file for all rails (netplan's reference, version 2), for its renderer networkd.

    It sets neither a name nor an MTU: for either netplan would write a .link file that comes before all others, and a
    device that none of them names keeps the kernel's.
    """
    lines = [
        f"{HEADER}# The MTU of {ports[0].mtu} is set by {UDEV}.",
        "network:",
        "  version: 2",
        "  ethernets:",
    ]
    for port in ports:
        lines += [
            f"    railwright-{port.key}:",
            "      renderer: networkd",
            "      match:",
            f'        macaddress: "{port.place.nic.mac}"',
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            "      optional: true",
            "      ignore-carrier: true",
            "      addresses:",
            f'        - "{port.interface}"',
            "      routes:",
            f'        - to: "{port.network}"',
            "          scope: link",
            f'          from: "{port.address}"',
            f"          table: {port.table}",
        ]
        if port.gateway is not None:
            lines += [
                f'        - to: "{_EVERYWHERE}"',
                f'          via: "{port.gateway}"',
                f'          from: "{port.address}"',
                f"          table: {port.table}",
            ]
        else:
            lines += [
                f'        - to: "{_EVERYWHERE}"',
                "          type: unreachable",
                f"          table: {port.table}",
            ]
        lines += [
            "      routing-policy:",
            f'        - from: "{port.address}/32"',
            f"          table: {port.table}",
            f"          priority: {port.priority}",
        ]
    return "\n".join(lines) + "\n"


def networkmanager_path(port: Addressed) -> str:
    """Where a port's keyfile lies."""
    return f"/etc/NetworkManager/system-connections/railwright-{port.key}.nmconnection"


def networkmanager(port: Addressed) -> str:
    """A keyfile (nm-settings-keyfile(5)). Without a gateway of its own it gets no default route in the main table."""
    name = f"railwright-{port.key}"
    lines = [
        f"{HEADER}[connection]",
        f"id={name}",
        f"uuid={_uuid(name)}",
        "type=ethernet",
        "autoconnect-priority=100",
        "",
        "[ethernet]",
        f"mac-address={port.place.nic.mac}",
        f"mtu={port.mtu}",
        "",
        "[ipv4]",
        f"address1={port.interface}",
        "method=manual",
        f"route1={port.network}",
        f"route1_options=src={port.address},table={port.table}",
    ]
    if port.gateway is not None:
        lines += [
            f"route2={_EVERYWHERE},{port.gateway}",
            f"route2_options=src={port.address},table={port.table}",
        ]
    else:
        lines += [f"route2={_EVERYWHERE}", f"route2_options=table={port.table},type=unreachable"]
    lines += [
        f"routing-rule1=priority {port.priority} from {port.address} table {port.table}",
        "",
        "[ipv6]",
        "method=link-local",
    ]
    return "\n".join(lines) + "\n"


def udev(ports: Sequence[Addressed]) -> str:
    """A rule that gives the MTU and the sysctls of its name to each rail's device when it comes, in whatever order."""
    lines = [
        f"{HEADER}# A device that comes later (its driver was loaded again, its card reset) has the kernel's values."
    ]
    for port in ports:
        match = f'SUBSYSTEM=="net", ENV{{ID_PATH}}=="{port.place.path}", ATTR{{type}}=="1"'
        run = "/usr/lib/systemd/systemd-sysctl --prefix=/net/ipv4/conf/$name"
        lines.append(f'ACTION=="add", {match}, ATTR{{mtu}}="{port.mtu}", RUN+="{run}"')
    return "\n".join(lines) + "\n"


def _uuid(name: str) -> str:
    """A version 5 UUID (RFC 9562, 5.5): the same name has the same one everywhere."""
    digest = bytearray(hashlib.sha1(_PROFILES + name.encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
