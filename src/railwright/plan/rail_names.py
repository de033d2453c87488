"""The slice `rail_names`: netdevs called after their rail, by the place of the card in the chassis.

A name holds from the next boot on, and lies in the initramfs too, since udev names devices there first. The .link file
of a place that a chassis has not does nothing. RDMA devices keep the kernel's names unless the policy asks otherwise:
NCCL and health checks of tenants look for mlx5_0 and the like.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ..node.model import Facts, Finding, Policy, Slice
from .entries import HEADER, file
from .rail_ports import Place

LINK_FOLDER = "/etc/systemd/network"
# It takes the place of the file of that name that rdma-core brings (kernel-boot/rdma-persistent-naming.rules).
RDMA_RULES = "/etc/udev/rules.d/60-rdma-persistent-naming.rules"
# Names by which the kernel's drivers call their devices (mlx5_ib, bnxt_re, irdma, ...); rdma-core's are like rocep12s0.
_RENAMED = ("roce", "ibp", "ibs", "ibo")


@dataclass(frozen=True)
class Named:
    """What the rails' names come to. names: the name that each netdev will have, by the name that it has now."""

    slice: Optional[Slice] = None
    names: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def link_path(name: str) -> str:
    """The .link file of a rail's name."""
    return f"{LINK_FOLDER}/70-railwright-{name}.link"


def named(facts: Facts, policy: Policy, ports: Sequence[Place]) -> Named:
    """Names for these ports of the rails, as far as the policy asks and nothing stands against it."""
    prefix = policy.rails.prefix
    if prefix is None:
        return Named()
    findings = list(_unnamed(facts, policy, ports))
    kept = {finding.where for finding in findings}
    chosen = [port for port in ports if port.label not in kept and _is_ethernet(port)]
    names = {port.nic.netdev: port.name(prefix) for port in chosen if port.nic.netdev is not None}
    findings += _renames(names)
    entries = [_link(port, prefix) for port in chosen]
    rdma, said = _rdma(facts, policy, ports)
    entries += rdma
    findings += said
    if not entries:
        return Named(findings=tuple(findings))
    inputs = [entry["path"] for entry in entries]
    entries.append({"kind": "initramfs", "name": "rail_names", "inputs": inputs})
    because = (
        "each rail is called by its number, from the place of its card in the chassis; the names hold from the next "
        "boot on, and the old ones stay as further names"
    )
    slice_ = Slice("persistent", tuple(entries), because)
    return Named(slice_, names, tuple(findings)) if policy.manage.get("rail_names", True) else Named(slice_)


def _is_ethernet(port: Place) -> bool:
    return port.nic.link_layer == "Ethernet"


def _link(port: Place, prefix: str) -> dict[str, Any]:
    name = port.name(prefix)
    content = (
        f"{HEADER}# Rail {port.rail}: the card in this place of the chassis, whichever it is. Further names keep what"
        " was written for the old one.\n"
        f"[Match]\nPath={port.path}\nType=ether\n\n"
        f"[Link]\nName={name}\nAlternativeNamesPolicy=database onboard slot path\n"
    )
    return file(link_path(name), content, reboot=True)


# -- what keeps its name, and why --


def _unnamed(facts: Facts, policy: Policy, ports: Sequence[Place]) -> Iterator[Finding]:
    prefix = policy.rails.prefix or ""
    for port in ports:
        if not _is_ethernet(port):
            continue
        if port.nic.default_route:
            yield _kept(
                "management",
                "info",
                port,
                "it holds the node's default route, and a node that loses its name there may not come back",
                "name another NIC as rail in policy.nics, or accept this finding",
            )
        elif port.nic.master is not None:
            yield _kept(
                "master",
                "warning",
                port,
                f"it is a member of {port.nic.master}, whose configuration may know it by its name",
                f"take it out of {port.nic.master}, or set policy.manage.rail_names to false",
            )
        elif port.device in facts.managers.crowded:
            yield _kept(
                "shared",
                "warning",
                port,
                f"{port.device} carries several netdevs, and a place in the chassis does not tell them apart",
                "put the card in legacy mode (devlink dev eswitch), or set policy.manage.rail_names to false",
            )
        elif _is_foreign(port):
            yield _kept(
                "foreign",
                "warning",
                port,
                f"{port.link_file} names it, and comes before ours",
                f"take the port out of {port.link_file}, or set policy.manage.rail_names to false",
            )
        else:
            yield from _spoken_of(policy, port, port.name(prefix))
            yield from _taken(facts, port, ports, port.name(prefix))


def _is_foreign(port: Place) -> bool:
    """Of .link files that fit a device, the first by name counts (systemd.link(5))."""
    if port.link_file is None:
        return False
    own, other = posixpath.basename(link_path("")), posixpath.basename(port.link_file)
    return "railwright" not in other and other < own


def _spoken_of(policy: Policy, port: Place, name: str) -> Iterator[Finding]:
    """Where the policy knows the port by the name that it would lose, the next boot could not be planned."""
    now = port.nic.netdev
    if now is None or now == name:
        return
    for number, entry in enumerate(policy.nics):
        if entry.match == now:
            yield _kept(
                "match",
                "error",
                port,
                f"policy.nics[{number}] knows it by this name, and would find nothing once it is {name}",
                f"write match: {port.device} there",
            )
            return
    if now in (policy.nccl.socket_ifname or "").lstrip("=^").split(","):
        yield _kept(
            "match",
            "error",
            port,
            f"policy.nccl.socket_ifname names it, and NCCL would find nothing once it is {name}",
            "name the management interface there, or leave it out",
        )


def _taken(facts: Facts, port: Place, ports: Sequence[Place], name: str) -> Iterator[Finding]:
    others = {place.nic.netdev for place in ports} | {None}
    strangers = {nic.netdev for nic in facts.nics if nic.netdev not in others} | set(facts.managers.names)
    if name in strangers:
        yield _kept(
            "taken",
            "error",
            port,
            f"{name} is the name of another device of this node",
            "take another policy.rails.prefix, or rename that device",
        )


def _kept(code: str, severity: str, port: Place, why: str, remedy: str) -> Finding:
    return Finding(f"rail_names.{code}", severity, port.label, f"it keeps its name: {why}", remedy)


def _renames(names: Mapping[str, str]) -> Iterator[Finding]:
    changing = [f"{now} becomes {name}" for now, name in names.items() if now != name]
    if changing:
        yield Finding(
            "rail_names.reboot",
            "info",
            "rail_names",
            f"at the next boot {', '.join(changing)}",
            "until then all that is written holds for the old names, and for the new ones after it",
        )


# -- RDMA devices --


def _rdma(facts: Facts, policy: Policy, ports: Sequence[Place]) -> tuple[list[dict[str, Any]], list[Finding]]:
    wanted, prefix = policy.rails.rdma_names, policy.rails.prefix or ""
    devices = [port for port in ports if port.nic.rdma is not None]
    if wanted == "as-is" or not devices:
        return [], []
    if facts.managers.rdma_rules:
        return [], [_others_rules(facts.managers.rdma_rules)]
    if wanted == "kernel":
        lines = [
            "# RDMA devices keep the kernel's names (mlx5_0, ...), which NCCL_IB_HCA=mlx5 and health checks look for.",
            "# This file takes the place of rdma-core's rule of the same name, and renames nothing.",
        ]
        findings = list(_to_kernel_names(devices))
    else:
        findings = list(_known_by_rdma_name(policy, devices, prefix))
        kept = {finding.where for finding in findings}
        devices = [port for port in devices if port.nic.rdma not in kept]
        lines = [
            "# RDMA devices of the rails are called like their netdevs; all others keep the kernel's names.",
            *dict.fromkeys(_rule(port, prefix) for port in _first_of_function(devices)),
        ]
        findings.append(_fixed(devices, prefix))
    content = HEADER + "".join(f"{line}\n" for line in lines)
    return [file(RDMA_RULES, content, reboot=True)], findings


def _others_rules(path: str) -> Finding:
    return Finding(
        "rail_names.rdma_foreign",
        "warning",
        path,
        "somebody else's rules name the RDMA devices here: they stay as they are",
        'remove that file to have the policy\'s names, or set policy.rails.rdma_names to "as-is"',
    )


def _first_of_function(devices: Sequence[Place]) -> list[Place]:
    first: dict[str, Place] = {}
    for port in devices:
        first.setdefault(port.device, port)
    return list(first.values())


def _rule(port: Place, prefix: str) -> str:
    # The device of a subfunction or a VF hangs deeper or on another function, so it is not meant.
    return (
        f'ACTION=="add", SUBSYSTEM=="infiniband", DEVPATH=="*/{port.device}/infiniband/*", '
        f'PROGRAM="rdma_rename %k NAME_FIXED {port.name(prefix)}"'
    )


def _known_by_rdma_name(policy: Policy, devices: Sequence[Place], prefix: str) -> Iterator[Finding]:
    for port in _first_of_function(devices):
        name, now = port.name(prefix), port.nic.rdma or ""
        number = next((n for n, entry in enumerate(policy.nics) if entry.match == now != name), None)
        if number is not None:
            yield Finding(
                "rail_names.match",
                "error",
                now,
                f"it keeps its name: policy.nics[{number}] knows it so, and would find nothing once it is {name}",
                f"write match: {port.device} there",
            )


def _to_kernel_names(devices: Sequence[Place]) -> Iterator[Finding]:
    other = [port.nic.rdma or "" for port in devices if (port.nic.rdma or "").startswith(_RENAMED)]
    if other:
        yield Finding(
            "rail_names.rdma_kernel",
            "info",
            ", ".join(other),
            "rdma-core's rule gave these names; from the next boot on they are the kernel's again (mlx5_0, ...), and"
            " /etc/nccl.conf follows with the first plan after it",
            'set policy.rails.rdma_names to "as-is" to keep them',
        )


def _fixed(devices: Sequence[Place], prefix: str) -> Finding:
    return Finding(
        "rail_names.rdma_fixed",
        "warning",
        ", ".join(port.name(prefix) for port in _first_of_function(devices)),
        "RDMA devices get fixed names at the next boot, as the policy asks: a tenant's own NCCL_IB_HCA=mlx5 then "
        "matches nothing and NCCL falls back to TCP without a word, and tools that look for mlx5_0 find no device",
        'accept this finding with a reason, or set policy.rails.rdma_names to "kernel"',
    )
