"""What each NIC is for, decided before any distance is weighed.

Signals, in order: the user's word, the NVSwitch management mark, virtual functions, whether it is up, whether it is an
RDMA device, the default route, then closeness to GPUs together with rate and link layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from ..node.model import Facts, Finding, Gpu, Nic, NicPolicy, Policy
from .cards import Card, group
from .closeness import Judged, among_candidates, near_gpus
from .distance import Distances
from .spoken import word_on_ports

_NOT_UP = {
    "down": "its link is down",
    "init": "its state is init: no subnet manager has brought it up",
    "armed": "its state is armed: the subnet manager has not finished bringing it up",
}
# PCI vendor and device of B200 and B300 SXM (pci.ids: GB100 [B200], GB110 [B300 SXM6 AC]).
_HGX_OF_NVLINK5 = (("0x10de", "0x2901"), ("0x10de", "0x3182"))
_CONNECTX7 = ("0x15b3", "0x1021")


@dataclass(frozen=True)
class Roles:
    """All ports in PCI order, the rail cards, and what is to be said of them. lost: names of ports that would be rails
    if their links were up."""

    ports: tuple[Judged, ...]
    rails: tuple[Card, ...]
    findings: tuple[Finding, ...]
    lost: tuple[str, ...] = ()

    @property
    def numbers(self) -> dict[str, int]:
        """Rail numbers that the policy gives, by port name."""
        return {port.nic.name: port.number for port in self.ports if port.number is not None}


def judge(facts: Facts, policy: Policy, distances: Distances) -> Roles:
    """The role of every port, in the order of the facts. Raises InputError when the policy contradicts itself."""
    ordered = facts.nics
    spoken = word_on_ports(facts, policy)
    front = _front_end(ordered)
    whole = [gpu for gpu in facts.gpus if not gpu.partial]
    # Other witnesses may know a NIC without knowing its RDMA device.
    sees_rdma = any(witness.kind == "sysfs" for witness in facts.witnesses)
    ports = [_first_look(nic, spoken.get(nic.name), front, sees_rdma) for nic in ordered]
    findings: list[Finding] = []
    open_ = [port for port in ports if port.role == ""]
    if not open_ and not any(port.role == "rail" for port in ports):
        ports = _share_front_end(ports, findings)
        open_ = [port for port in ports if port.role == ""]
    doubtful = {port.nic.name: port for port in _perhaps_management(open_, whole, distances, facts)}
    ports = [doubtful.get(port.nic.name, port) for port in ports]
    open_ = [port for port in open_ if port.nic.name not in doubtful]
    named = [port for port in ports if port.role == "rail"]
    decided = {port.nic.name: port for port in among_candidates(open_, named, whole, distances, facts)}
    ports = [_with_place(decided.get(port.nic.name, port), whole, distances) for port in ports]
    rails = group([port.nic for port in ports if port.role == "rail"], _together(ports))
    ports = [_second_port(port, rails) for port in ports]
    findings += _about_management(doubtful)
    findings += _slower([port for port in ports if port.nic.name not in spoken], ports, whole, distances)
    findings += _questions([port for port in ports if port.nic.name not in doubtful], whole, distances, facts)
    lost = [port.nic.name for port in ports if _is_lost(port, whole, distances)]
    return Roles(tuple(ports), rails, tuple(findings), tuple(lost))


def _is_lost(port: Judged, gpus: Sequence[Gpu], distances: Distances) -> bool:
    """Whether a port would be a rail if its link were up."""
    return port.role == "down" and (port.number is not None or bool(near_gpus(port.nic, gpus, distances)))


def _together(ports: Sequence[Judged]) -> list[frozenset[str]]:
    """Ports that the policy puts on one rail are one NIC to the planner."""
    members: dict[int, set[str]] = {}
    for port in ports:
        if port.number is not None:
            members.setdefault(port.number, set()).add(port.nic.name)
    return [frozenset(names) for names in members.values() if len(names) > 1]


# -- one port alone --


def _front_end(nics: Sequence[Nic]) -> frozenset[Optional[str]]:
    """Netdevs that hold the default route."""
    return frozenset(nic.netdev for nic in nics if nic.default_route and nic.netdev is not None)


def _first_look(
    nic: Nic, spoken: Optional[NicPolicy], front: frozenset[Optional[str]], sees_rdma: bool
) -> Judged:
    """The role that the port's own facts settle, else ""."""
    up = nic.state not in _NOT_UP
    if nic.management:
        why = "the VPD calls it an NVSwitch management function (SW_MNG)"
        return Judged(nic, "nvlink-mgmt", why, visible=up)
    if spoken is not None and (spoken.role is not None or spoken.rail is not None):
        role = spoken.role or "rail"
        who = "the policy" if spoken.source is None else f"the {spoken.source}"
        if role == "rail" and not up:
            why = f"{who} says rail, but {_not_up(nic)}"
            return Judged(nic, "down", why, spoken.rail, visible=False)
        return Judged(nic, role, f"{who} says {role}", spoken.rail, visible=up)
    if nic.physical_function:
        return Judged(nic, "vf", f"a virtual function of {nic.physical_function}", visible=up)
    if nic.rdma is None and (nic.netdev is not None or sees_rdma):
        role = "management" if nic.default_route or nic.netdev in front or nic.master in front else "unknown"
        why = (
            "holds the default route; no RDMA device"
            if role == "management"
            else "no RDMA device belongs to it"
        )
        return Judged(nic, role, why, visible=False)
    if not up:
        return Judged(nic, "down", _not_up(nic), visible=False)
    if nic.default_route or (nic.master is not None and nic.master in front):
        return Judged(nic, "management", "holds the node's default route")
    return Judged(nic, "", "")


def _not_up(nic: Nic) -> str:
    return _NOT_UP[nic.state or "down"]


def _share_front_end(ports: list[Judged], findings: list[Finding]) -> list[Judged]:
    """Where the only RDMA NICs that are up also hold the default route, they have to be the rails."""
    shared = [port for port in ports if port.role == "management" and port.nic.rdma is not None]
    if not shared:
        return ports
    names = ", ".join(port.nic.name for port in shared)
    findings.append(
        Finding(
            "nics.shared",
            "warning",
            names,
            "the only RDMA NIC that is up also holds the default route: GPU traffic and logins share it",
            "name another NIC as rail in policy.nics, or accept this finding",
        )
    )
    return [replace(port, role="") if port in shared else port for port in ports]


# -- NVSwitch management functions that nobody may take for rails --


def _perhaps_management(
    ports: Sequence[Judged], gpus: Sequence[Gpu], distances: Distances, facts: Facts
) -> list[Judged]:
    """InfiniBand ports of an HGX B200 or B300 whose VPD could not be read, and that are beside no GPU.

    There NVSwitches are managed by functions that look like ConnectX-7 (siderolabs/extensions#893: mlx5_8 to 11 on one
    machine, mlx5_0 to 3 on another); only the VPD tells (SW_MNG).
    """
    if not any(distances.model_of(gpu.address) in _HGX_OF_NVLINK5 for gpu in facts.gpus):
        return []
    why = (
        "it may be an NVSwitch management function, which on an HGX B200 or B300 looks like this, and its VPD "
        "could not be read"
    )
    return [
        replace(port, role="unknown", because=why)
        for port in ports
        if port.nic.management is None
        and port.nic.link_layer in (None, "InfiniBand")
        and distances.model_of(port.nic.address) in (None, _CONNECTX7)
        and not near_gpus(port.nic, gpus, distances)
    ]


def _about_management(doubtful: Mapping[str, Judged]) -> Iterable[Finding]:
    if doubtful:
        names, first = ", ".join(doubtful), next(iter(doubtful.values())).nic
        yield Finding(
            "nics.management",
            "warning",
            names,
            f"{names} may manage the NVSwitches: on an HGX B200 or B300 such functions look like InfiniBand NICs, and "
            "the VPD, which tells, could not be read",
            "read the node as root, or look for SW_MNG in `lspci -vvv`, and else say what they are in policy.nics: "
            f"{{match: {first.rdma or first.name}, role: nvlink-mgmt}}, or role: storage or rail",
        )


# -- rails and their cards --


def _with_place(port: Judged, gpus: Sequence[Gpu], distances: Distances) -> Judged:
    """A rail that the policy numbers, with what can be seen of its place: the number alone explains nothing."""
    near = near_gpus(port.nic, gpus, distances) if port.role == "rail" and port.number is not None else []
    if not near:
        return port
    said = ", ".join(f"{word} to {gpu}" for gpu, word in near)
    return replace(port, because=f"{port.because} {port.number}, {said}")


def _second_port(port: Judged, rails: Sequence[Card]) -> Judged:
    for card in rails:
        if port.nic in card.ports[1:]:
            return replace(
                port, role="second-port", because=f"further port of {card.name}'s card; {port.because}"
            )
    return port


# -- what only the user can say --


def _slower(
    open_: Sequence[Judged], ports: Sequence[Judged], gpus: Sequence[Gpu], distances: Distances
) -> Iterable[Finding]:
    """Ports beside a GPU that are no rails only because they came up slower than the same card beside other GPUs.

    open_: those of the ports that the policy says nothing of.
    """
    rates: dict[object, int] = {}
    for port in ports:
        if port.role == "rail" and port.nic.rate is not None:
            kind = (distances.model(port.nic), port.nic.link_layer)
            rates[kind] = max(port.nic.rate, rates.get(kind, 0))
    for port in open_:
        most = rates.get((distances.model(port.nic), port.nic.link_layer), 0)
        if port.role not in ("storage", "unknown") or port.nic.rate is None or port.nic.rate >= most:
            continue
        near = near_gpus(port.nic, gpus, distances)
        if near and distances.model(port.nic) is not None:
            yield Finding(
                "rails.speed",
                "error",
                port.nic.name,
                f"beside {', '.join(gpu for gpu, _ in near)}, and it runs at {port.nic.rate / 1000:g} Gb/s where the "
                f"same card has {most / 1000:g} Gb/s beside other GPUs: it is no rail as it is",
                "check transceiver, cable and the switch port's speed and FEC; where the port is meant for something "
                f"else, say so in policy.nics: {{match: {port.nic.name}, role: storage}}",
            )


def _questions(
    ports: Sequence[Judged], gpus: Sequence[Gpu], distances: Distances, facts: Facts
) -> Iterable[Finding]:
    open_ = [
        port for port in ports if port.role == "unknown" and port.nic.rdma is not None and facts.complete
    ]
    if open_:
        names = ", ".join(port.nic.name for port in open_)
        yield Finding(
            "nics.role",
            "info",
            names,
            f"what {names} is for cannot be told: {open_[0].because}",
            f"is it storage, management or a rail? say so in policy.nics: {{match: {open_[0].nic.name}, role: ...}}",
        )
    for port in ports:
        if _is_lost(port, gpus, distances):
            near = near_gpus(port.nic, gpus, distances)
            place = f"beside {', '.join(gpu for gpu, _ in near)}" if near else f"named as rail {port.number}"
            yield Finding(
                "nics.down",
                "error",
                port.nic.name,
                f"{place}, but {port.because.split(', but ')[-1]}",
                "check cable, transceiver and switch port (InfiniBand: the subnet manager); then plan again",
            )
