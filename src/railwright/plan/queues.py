"""The slice `queues`: channels, rings and coalescing of the rails' netdevs, in the order that a driver wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

from ..node.model import Facts, Finding, Nic, Policy, Queues, Slice, parse_cpulist

Entry = dict[str, Any]
# NCCL polls; a rail's interrupts matter to its bootstrap and to storage only (common practice).
USUAL_CHANNELS = 8
_COALESCING = ("adaptive_rx", "adaptive_tx", "rx_usecs", "tx_usecs")


def slice_of(facts: Facts, policy: Policy, rails: Sequence[Nic]) -> Optional[Slice]:
    """None where the policy asks for nothing. A port's number is bounded by what its driver says that it can do."""
    told = {queues.netdev: queues for queues in facts.queues}
    groups: list[list[Entry]] = [[], [], [], []]
    for nic in _ports(rails):
        queues = told.get(nic.netdev or "", Queues(nic.netdev or ""))
        for group, entry in zip(groups, _entries(policy, nic, queues)):
            group += [] if entry is None else [entry]
    entries = [entry for group in groups for entry in group]
    if not entries:
        return None
    return Slice(
        "runtime",
        tuple(entries),
        "few queues keep a rail's interrupts on its own cores; a change of channels or rings stops the port for a "
        "moment, so it is made only where they differ and no RDMA traffic runs",
    )


def xps(policy: Policy, address: str, cpus: str) -> Optional[Entry]:
    """Transmit queues of a port for the CPUs of its interrupts."""
    if not policy.queues.xps:
        return None
    return {"kind": "queue_cpus", "device": address, "steering": "xps", "cpus": cpus}


def findings(
    facts: Facts, policy: Policy, rails: Sequence[Nic], cpus: dict[str, Optional[str]]
) -> Iterator[Finding]:
    """cpus: where a port's interrupts go, by port name."""
    told = {queues.netdev: queues for queues in facts.queues}
    many, bounded = [], []
    for nic in _ports(rails):
        queues = told.get(nic.netdev or "")
        if queues is None or queues.combined is None:
            continue
        if policy.queues.channels is None and queues.combined > USUAL_CHANNELS and cpus.get(nic.name):
            many.append((nic, queues.combined))
        wished = {
            "channels": (policy.queues.channels, queues.most_combined),
            "rx_ring": (policy.queues.rx_ring, queues.most_rx_ring),
            "tx_ring": (policy.queues.tx_ring, queues.most_tx_ring),
        }
        bounded += [
            f"{nic.name}: {name} {most} of {value}"
            for name, (value, most) in wished.items()
            if value is not None and most is not None and most < value
        ]
    if many:
        nic, count = many[0]
        served = len(parse_cpulist(cpus[nic.name] or "", f"cores of {nic.name}"))
        yield Finding(
            "queues.channels",
            "info",
            ", ".join(nic.name for nic, _ in many),
            f"{nic.name} has {count} channels whose interrupts share {served} cores; {USUAL_CHANNELS} are usual",
            f"set policy.queues.channels to {USUAL_CHANNELS} to have it written: it stops each port for a moment",
        )
    if bounded:
        yield Finding(
            "queues.bounded",
            "info",
            "policy.queues",
            f"the drivers allow less than the policy asks for: {', '.join(bounded)}",
            "ask for what they allow: ethtool -l, ethtool -g",
        )


def _ports(rails: Sequence[Nic]) -> tuple[Nic, ...]:
    """Ports with a netdev, one for each PCI function."""
    found: dict[str, Nic] = {}
    for nic in rails:
        if nic.address is not None and nic.netdev is not None:
            found.setdefault(nic.address, nic)
    return tuple(found.values())


def _entries(policy: Policy, nic: Nic, queues: Queues) -> tuple[Optional[Entry], ...]:
    wish = policy.queues
    channels = {"combined": _most(wish.channels, queues.most_combined)}
    rings = {"rx": _most(wish.rx_ring, queues.most_rx_ring), "tx": _most(wish.tx_ring, queues.most_tx_ring)}
    waits = {name: getattr(wish, name) for name in _COALESCING}
    return (
        _entry("ethtool_channels", nic, channels),
        _entry("ethtool_rings", nic, rings),
        _entry(
            "ethtool_coalesce",
            nic,
            {name: None if value is None else int(value) for name, value in waits.items()},
        ),
        None
        if wish.rps is None
        else {"kind": "queue_cpus", "device": nic.address, "steering": "rps", "cpus": ""},
    )


def _entry(kind: str, nic: Nic, values: dict[str, Optional[int]]) -> Optional[Entry]:
    set_ = {name: value for name, value in values.items() if value is not None}
    return {"kind": kind, "device": nic.address, **set_} if set_ else None


def _most(value: Optional[int], most: Optional[int]) -> Optional[int]:
    return value if value is None or most is None else min(value, most)
