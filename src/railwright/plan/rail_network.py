"""The slice `rail_network`: addresses, tables and rules of the rails, by whatever configures the node's network.

Each rail speaks from its own address through its own table: what comes from there leaves by that rail and no other.
In mode "subnet" every rail is a network of its own; in mode "flat" all are in one, and the kernel has to be kept from
answering ARP for one rail on another (ARP flux: Documentation/networking/ip-sysctl.rst, arp_ignore and arp_announce).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ..node.model import Facts, Finding, Policy, RailAddress, Slice
from ..node.model.manager_facts import NETWORK_MANAGER, NETWORKD
from ..node.model.rails_policy import interface_of
from . import rail_files
from .entries import file
from .rail_files import Addressed
from .rail_ports import Place

# Rules stand between those of the kernel: local (0) and main (32766).
_FIRST_PRIORITY = 10_000
_PORTS = 4
# A further port of a rail's card has a table of its own, beyond all that rails have.
_TABLES_OF_PORTS = 1_000
# The kernel adds up, to the device's own value, that of "all" (include/linux/inetdevice.h): the larger one counts.
# rp_filter 2 takes what came by another way than the answer would go, which peers on other rails need. arp_ignore 1
# answers for addresses of the asked rail only, 2 for askers in its network only. arp_announce 2 asks with an address of
# the rail. accept_local takes packets of the node's own other rails. (libfabric's wiki and OCI's stack in mode "flat".)
_SYSCTLS: Mapping[str, Mapping[str, str]] = {
    "subnet": {"arp_announce": "2", "arp_ignore": "1", "rp_filter": "2"},
    "flat": {"accept_local": "1", "arp_announce": "2", "arp_ignore": "2", "rp_filter": "2"},
}
# Bytes that RoCE v2 puts around a packet's data, as the kernel counts them (drivers/infiniband, iboe_get_mtu in
# include/rdma/ib_addr.h: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4).
ROCE_BYTES = 96
# The sizes that the data of a packet can have (IBA 1.5 volume 1, 9.2.7), the largest first.
RDMA_MTUS = (4096, 2048, 1024, 512, 256)
# Linux net/ipv4/arp.c: gc_thresh1 to 3 of a new kernel.
_GC_THRESHOLDS = (128, 512, 1024)
_GC_NAMES = tuple(f"net.ipv4.neigh.default.gc_thresh{n}" for n in (1, 2, 3))


def rdma_mtu(mtu: int) -> Optional[int]:
    """The largest RDMA path MTU that a netdev of this MTU admits; None where it admits none."""
    return next((size for size in RDMA_MTUS if size + ROCE_BYTES <= mtu), None)


@dataclass(frozen=True)
class Network:
    """What the rails' network comes to. sysctls: for the slice `sysctls`, by name. later: the same for names that the
    rails have from the next boot on. least: limits of the neighbour table, where more is as good."""

    slice: Optional[Slice] = None
    findings: tuple[Finding, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    later: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)


def refusals(facts: Facts, policy: Policy) -> list[Finding]:
    """Why the addresses that the policy gives cannot be set: nobody, or several, run this node's network."""
    rails, managers = policy.rails, facts.managers
    if not _is_asked(policy) or not policy.manage.get("rail_network", True):
        return []
    if rails.backend is not None or managers.running is None:
        return []
    if len(managers.running) == 1:
        return []
    if managers.running:
        who = " and ".join(managers.running)
        why = f"{who} both run here, and which of them configures the rails cannot be told"
        remedy = 'say it in policy.rails.backend ("networkd", "netplan" or "networkmanager"), or stop the other one'
    else:
        why = f"neither {NETWORKD} nor {NETWORK_MANAGER} runs here, and policy.rails.addresses asks for addresses"
        remedy = "start one of them, or take the addresses out of the policy"
    return [Finding("rail_network.backend", "error", "policy.rails.backend", why, remedy)]


def networked(facts: Facts, policy: Policy, ports: Sequence[Place], names: Mapping[str, str]) -> Network:
    """Files, sysctls and findings for the rails' addresses. names: what netdevs will be called, by today's names."""
    least = _least(policy, ports)
    if not _is_asked(policy):
        return Network(findings=tuple(_how_to_ask(policy, ports)), least=least)
    backend = _backend(facts, policy)
    if backend is None:
        return Network(findings=(_unseen(),), least=least)
    findings: list[Finding] = []
    chosen = list(_addressed(facts, policy, ports, backend, findings))
    findings += _without_address(policy, ports)
    findings += _given(chosen, backend)
    findings += _replaced(chosen, backend)
    findings += _about_mtu(policy, chosen)
    if not chosen:
        return Network(findings=tuple(findings), least=least)
    slice_ = _slice(policy, chosen, backend, names)
    if not policy.manage.get("rail_network", True):
        return Network(slice=slice_)
    return Network(
        slice=slice_,
        findings=tuple(findings),
        sysctls=_sysctls(policy, [port.place.nic.netdev for port in chosen]),
        later=_sysctls(policy, [names.get(port.place.nic.netdev or "") for port in chosen]),
        least=least,
    )


def _is_asked(policy: Policy) -> bool:
    return bool(policy.rails.addresses)


def _backend(facts: Facts, policy: Policy) -> Optional[str]:
    if policy.rails.backend is not None:
        return policy.rails.backend
    managers = facts.managers
    if managers.running is None or len(managers.running) != 1:
        return None
    if managers.running == (NETWORK_MANAGER,):
        return "networkmanager"  # under netplan too: NetworkManager reads its own profiles beside netplan's
    return "netplan" if managers.netplan else "networkd"


# -- which ports get an address --


def _addressed(
    facts: Facts, policy: Policy, ports: Sequence[Place], backend: str, findings: list[Finding]
) -> Iterator[Addressed]:
    by_place = {(port.rail, port.ordinal): port for port in ports}
    for number, entry in enumerate(
        sorted(policy.rails.addresses, key=lambda entry: (entry.rail, entry.port))
    ):
        port = by_place.get((entry.rail, entry.port))
        found = _unplaced(entry) if port is None else _unfit(facts, port, backend)
        if found is not None:
            findings.append(found)
        elif port is not None:
            yield Addressed(
                place=port,
                interface=interface_of(entry, f"policy.rails.addresses[{number}]"),
                gateway=entry.gateway,
                table=policy.rails.table + entry.rail + _TABLES_OF_PORTS * (entry.port - 1),
                priority=_FIRST_PRIORITY + _PORTS * entry.rail + entry.port - 1,
                mtu=policy.rails.mtu,
            )


def _unplaced(entry: RailAddress) -> Finding:
    what = f"rail {entry.rail}" + (f", port {entry.port}" if entry.port > 1 else "")
    return Finding(
        "rail_network.unplaced",
        "error",
        what,
        f"the policy gives {what} the address {entry.address}, and this node has no such rail",
        "find out why the card is gone, or correct policy.rails.addresses",
    )


def _unfit(facts: Facts, port: Place, backend: str) -> Optional[Finding]:
    """Why a port is not given its address; None where nothing stands against it."""
    nic = port.nic
    if nic.link_layer != "Ethernet":
        why = "it is no Ethernet port, and RDMA over InfiniBand needs no addresses"
        return _left("layer", port, why, "take its address out of policy.rails.addresses")
    if nic.default_route:
        why = "it holds the node's default route, which nothing here touches"
        return _left("management", port, why, "take its address out of policy.rails.addresses")
    if nic.master is not None:
        why = f"it is a member of {nic.master}, and a member has no address of its own"
        return _left("master", port, why, f"take it out of {nic.master}, or its address out of the policy")
    if port.device in facts.managers.crowded:
        why = f"{port.device} carries several netdevs, and a place in the chassis does not tell them apart"
        return _left("shared", port, why, "put the card in legacy mode (devlink dev eswitch)")
    if nic.mac is None:
        why = "its hardware address is not known, and the back-ends know a device by nothing else that lasts"
        return _left("mac", port, why, "load its driver, then read the node again")
    if _is_in_the_way(port, backend):
        why = f"{port.file} configures it, and comes before ours"
        return _left(
            "foreign", port, why, f"take the port out of {port.file}, or its address out of the policy"
        )
    return None


def _left(code: str, port: Place, why: str, remedy: str) -> Finding:
    return Finding(f"rail_network.{code}", "error", port.label, f"it is left as it is: {why}", remedy)


def _is_foreign(port: Place) -> bool:
    return port.file is not None and "railwright" not in posixpath.basename(port.file)


def _is_in_the_way(port: Place, backend: str) -> bool:
    """Whether somebody else's file keeps ours from holding: the first .network file by name that fits a device counts
    (systemd.network(5)); a profile of NetworkManager's or ifupdown's would be fought with at every boot."""
    if not _is_foreign(port) or port.file is None:
        return False
    name, folder = posixpath.basename(port.file), posixpath.dirname(port.file)
    if backend == "networkmanager" or not name.endswith(".network"):
        return not folder.startswith(
            "/run/"
        )  # NetworkManager's own "Wired connection 1" gives way to a better one
    own = "10-netplan-railwright-rail" if backend == "netplan" else "70-railwright-rail"
    return name < own


# -- what is to be said --


def _how_to_ask(policy: Policy, ports: Sequence[Place]) -> Iterator[Finding]:
    bare = [port.label for port in ports if port.nic.link_layer == "Ethernet" and not port.nic.addresses]
    if bare and policy.manage.get("rail_network", True):
        yield Finding(
            "rail_network.ask",
            "info",
            ", ".join(bare),
            "these rails have no address, and the policy gives none: they are left as they are",
            "give node_rails in the inventory (`railwright inventory --network ... --rails N` writes it), or"
            " policy.rails.addresses",
        )


def _unseen() -> Finding:
    return Finding(
        "rail_network.unseen",
        "info",
        "policy.rails.addresses",
        "this witness does not tell what configures the node's network, so nothing is planned for the rails' addresses",
        "read the node itself, or say it in policy.rails.backend",
    )


def _without_address(policy: Policy, ports: Sequence[Place]) -> Iterator[Finding]:
    given = {(entry.rail, entry.port) for entry in policy.rails.addresses}
    bare = [
        port.label
        for port in ports
        if port.nic.link_layer == "Ethernet"
        and (port.rail, port.ordinal) not in given
        and not port.nic.addresses
    ]
    if bare:
        yield Finding(
            "rail_network.bare",
            "warning",
            ", ".join(bare),
            "other rails of this node have an address in the policy, and these have none",
            "give them one in policy.rails.addresses",
        )


def _given(chosen: Sequence[Addressed], backend: str) -> Iterator[Finding]:
    """An inventory that names the rails' addresses has them written without another word in its policy."""
    new = [port for port in chosen if str(port.interface) not in port.place.nic.addresses]
    if new:
        told = "; ".join(
            f"{port.place.label} gets {port.interface}, and has {', '.join(port.place.nic.addresses) or 'none'}"
            for port in new
        )
        yield Finding(
            "rail_network.gives",
            "info",
            ", ".join(port.place.label for port in new),
            f"policy.rails.addresses names these addresses (an inventory's node_rails go there), so {backend} is told "
            f"to set them: {told}",
            "policy.manage.rail_network: false leaves the rails' network as it is",
        )


def _replaced(chosen: Sequence[Addressed], backend: str) -> Iterator[Finding]:
    for port in chosen:
        if _is_foreign(port.place):
            yield Finding(
                "rail_network.replaces",
                "info",
                port.place.label,
                f"{port.place.file} has configured it until now, and ours comes before it",
                f"if that file is meant to hold, take the rail's address out of the policy ({backend})",
            )


def _about_mtu(policy: Policy, chosen: Sequence[Addressed]) -> Iterator[Finding]:
    admitted = rdma_mtu(policy.rails.mtu)
    if chosen and admitted != RDMA_MTUS[0]:
        yield Finding(
            "rail_network.mtu",
            "warning",
            "policy.rails.mtu",
            f"an MTU of {policy.rails.mtu} admits RDMA packets of {admitted} bytes of data, not of {RDMA_MTUS[0]}",
            f"give at least {RDMA_MTUS[0] + ROCE_BYTES}; 9000 where the switch takes 9216",
        )
    changing = [port.place for port in chosen if port.place.nic.mtu not in (None, policy.rails.mtu)]
    if changing:
        yield Finding(
            "rail_network.interruption",
            "info",
            ", ".join(place.label for place in changing),
            f"the MTU changes from {', '.join(sorted({str(place.nic.mtu) for place in changing}))} to "
            f"{policy.rails.mtu}: the driver makes its queues anew, and traffic stops for a moment",
            "run this while no job uses the rails",
        )


# -- what is written --


def _slice(policy: Policy, ports: Sequence[Addressed], backend: str, names: Mapping[str, str]) -> Slice:
    files = [file(rail_files.UDEV, rail_files.udev(ports)), *_files(ports, backend)]
    entries: list[dict[str, Any]] = list(files)
    entries += [
        {"kind": "sysfs", "path": f"/sys/class/net/{port.place.nic.netdev}/mtu", "value": str(port.mtu)}
        for port in ports
        if port.place.nic.netdev is not None
    ]
    entries.append(
        {
            "kind": "network",
            "backend": backend,
            "mode": policy.rails.mode,
            "files": [entry["path"] for entry in files[1:]],
            "confirm_seconds": policy.rails.confirm_seconds,
            "ports": [_port(port, names) for port in ports],
        }
    )
    why = (
        "each rail is a network of its own"
        if policy.rails.mode == "subnet"
        else "all rails are in one network, and each answers for itself alone"
    )
    because = (
        f"{why}; what comes from a rail's address leaves by that rail or not at all, through its own table "
        f"({backend}), as policy.rails.addresses or the inventory's node_rails ask for"
    )
    if policy.rails.confirm_seconds:
        because += (
            f". A change after which nobody comes back within {policy.rails.confirm_seconds} s is undone"
        )
    return Slice("runtime", tuple(entries), because)


def _port(port: Addressed, names: Mapping[str, str]) -> dict[str, Any]:
    netdev = port.place.nic.netdev
    return {
        "rail": port.place.rail,
        "label": port.key,
        "device": port.place.device,
        "netdev": netdev,
        "name": names.get(netdev or "", netdev),
        "address": str(port.interface),
        "gateway": port.gateway,
        "table": port.table,
        "priority": port.priority,
        "mtu": port.mtu,
        "rdma_mtu": rdma_mtu(port.mtu),
    }


def _files(ports: Sequence[Addressed], backend: str) -> list[dict[str, Any]]:
    if backend == "networkd":
        return [file(rail_files.networkd_path(port), rail_files.networkd(port)) for port in ports]
    if backend == "netplan":
        # netplan warns of a file that others may read, and NetworkManager reads no such one: it may hold secrets.
        return [file(rail_files.NETPLAN, rail_files.netplan(ports), "0600")]
    return [
        file(rail_files.networkmanager_path(port), rail_files.networkmanager(port), "0600") for port in ports
    ]


def _sysctls(policy: Policy, netdevs: Sequence[Optional[str]]) -> dict[str, str]:
    return {
        f"net.ipv4.conf.{netdev}.{name}": value
        for netdev in netdevs
        if netdev is not None
        for name, value in _SYSCTLS[policy.rails.mode].items()
    }


def _least(policy: Policy, ports: Sequence[Place]) -> dict[str, int]:
    """Limits of the neighbour table: in one flat network each rail may know every rail of every node.

    gc_thresh1 is what is kept without looking, a power of two, so that a few nodes more do not change it.
    """
    if policy.rails.nodes is None or not ports:
        return {}
    rails = len({port.rail for port in ports})
    known = policy.rails.nodes * rails * (rails if policy.rails.mode == "flat" else 1)
    first = max(_GC_THRESHOLDS[0], 1 << max(known - 1, 1).bit_length())
    return dict(zip(_GC_NAMES, (first, 2 * first, 4 * first)))
