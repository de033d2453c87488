"""What a contract has to hold by itself, before any switch or host is looked at."""

from __future__ import annotations

from railwright.node.model import Finding
from railwright.plan.rail_network import RDMA_MTUS, ROCE_BYTES

from .contract import Contract, Switch

# A switch counts the Ethernet header, a VLAN tag and the frame check sequence; a host's MTU does not.
FRAME_OVERHEAD = 22


def contract_findings(contract: Contract, traffic_class: int | None, policy_seen: bool) -> list[Finding]:
    """Disagreements inside the contract, and of the nodes' NCCL policy with it."""
    return [
        *_lossless_count(contract),
        *_strict(contract),
        *_probability(contract),
        *_mtu(contract),
        *_adaptive_routing(contract),
        *_ecn_before_pfc(contract),
        *_nccl(contract, traffic_class, policy_seen),
    ]


def _lossless_count(contract: Contract) -> list[Finding]:
    if len(contract.lossless) == 1:
        return []
    names = ", ".join(contract.lossless)
    return [
        Finding(
            "fabric.lossless_count",
            "warning",
            "fabric.classes",
            f"{len(contract.lossless)} lossless classes ({names}): each takes headroom on every port, and PFC "
            "watchdogs have known faults when several priorities storm",
            "keep one lossless class where you can",
        )
    ]


def _strict(contract: Contract) -> list[Finding]:
    if any(one.strict for one in contract.classes.values()):
        return []
    return [
        Finding(
            "fabric.cnp_strict",
            "error",
            "fabric.classes",
            "no class is strict: congestion notifications wait behind the data that they are to slow down",
            "set strict: true on the class of congestion notifications",
        )
    ]


def _probability(contract: Contract) -> list[Finding]:
    # In the wild 5 to 100 %. What is below 1 % the contract does not take at all.
    speeds = {contract.speed(plug) for switch in contract.switches.values() for plug in switch.ports.values()}
    return [
        Finding(
            "fabric.marking_probability",
            "warning",
            f"fabric.ecn.{speed}",
            f"{contract.marking(speed).probability_percent} % at the upper threshold marks so few packets that "
            "PFC does the work",
            "state 5 % or more and tune it with np_ecn_marked against rx_prio_pause",
        )
        for speed in sorted(speeds)
        if contract.marking(speed).probability_percent < 5
    ]


def _mtu(contract: Contract) -> list[Finding]:
    found = []
    if contract.switch_mtu < contract.host_mtu + FRAME_OVERHEAD:
        found.append(
            Finding(
                "fabric.mtu",
                "error",
                "fabric.switch_mtu",
                f"{contract.switch_mtu} is below the hosts' {contract.host_mtu} + {FRAME_OVERHEAD}: full frames are "
                "dropped as oversized while small ones pass",
                f"state switch_mtu {max(9216, contract.host_mtu + FRAME_OVERHEAD)}",
            )
        )
    if contract.host_mtu < RDMA_MTUS[0] + ROCE_BYTES:
        found.append(
            Finding(
                "fabric.host_mtu",
                "warning",
                "fabric.host_mtu",
                f"{contract.host_mtu} leaves no room for an RDMA MTU of {RDMA_MTUS[0]}, which needs "
                f"{RDMA_MTUS[0] + ROCE_BYTES}: the NICs fall back to 2048 or less",
                "state host_mtu 9000, or 4200 at least",
            )
        )
    return found


def _adaptive_routing(contract: Contract) -> list[Finding]:
    routing = contract.adaptive_routing
    if routing.fabric == routing.nic == routing.nccl:
        return []
    said = ", ".join(
        f"{part} {'on' if getattr(routing, part) else 'off'}" for part in ("fabric", "nic", "nccl")
    )
    effect = (
        "packets arrive out of order at NICs that take it for loss (out_of_sequence rises without a drop)"
        if routing.fabric
        else "hosts expect spraying that the fabric does not do"
    )
    return [
        Finding(
            "fabric.adaptive_routing",
            "error",
            "fabric.adaptive_routing",
            f"{said}: {effect}",
            "set all three alike: the switches, ROCE_ADAPTIVE_ROUTING_EN of the NICs, NCCL_IB_ADAPTIVE_ROUTING",
        )
    ]


def _ecn_before_pfc(contract: Contract) -> list[Finding]:
    found = []
    for name, switch in contract.switches.items():
        speeds = sorted({contract.speed(plug) for plug in switch.ports.values()})
        if switch.pfc_xoff_bytes is None:
            found.append(
                Finding(
                    "fabric.ecn_before_pfc",
                    "info",
                    name,
                    "not verified that ECN marks before PFC pauses: the fill at which a port sends PAUSE is not stated",
                    f"state fabric.switches.{name}.pfc_xoff_bytes, or give its configuration with buffer pools",
                )
            )
            continue
        found += [
            ecn_after_pfc(contract, name, f"fabric.ecn.{speed}", speed, switch.pfc_xoff_bytes, switch)
            for speed in speeds
            if contract.marking(speed).max_bytes >= switch.pfc_xoff_bytes * switch.fan_in
        ]
    return found


def ecn_after_pfc(
    contract: Contract, name: str, where: str, speed: int, xoff_bytes: int, switch: Switch
) -> Finding:
    """The finding that PFC would pause before ECN marks with full probability.

    A queue that `fan_in` senders fill holds that many times what one of them holds when it is paused.
    """
    ecn = contract.marking(speed)
    return Finding(
        "fabric.ecn_before_pfc",
        "error",
        where,
        f"{name}: ECN marks fully at {ecn.max_bytes} bytes, PFC pauses {switch.fan_in} senders at {switch.fan_in} x "
        f"{xoff_bytes}: PFC acts first and congestion spreads",
        f"lower max_bytes below {switch.fan_in * xoff_bytes}, or raise the switch's dynamic threshold",
    )


def _nccl(contract: Contract, traffic_class: int | None, policy_seen: bool) -> list[Finding]:
    if not policy_seen:
        return []
    points = [point for one in contract.lossless.values() for point in one.dscp]
    remedy = f"state node_policy.nccl.traffic_class: {points[0] << 2}"
    if traffic_class is None:
        return [
            Finding(
                "fabric.nccl_traffic_class",
                "warning",
                "node_policy.nccl",
                "no traffic class is stated: NCCL sends DSCP 0 then, which is lossy",
                remedy,
            )
        ]
    if traffic_class >> 2 in points:
        return []
    return [
        Finding(
            "fabric.nccl_traffic_class",
            "error",
            "node_policy.nccl",
            f"traffic class {traffic_class} is DSCP {traffic_class >> 2}, which no lossless class selects "
            f"({', '.join(map(str, points))}): NCCL's data is lossy",
            remedy,
        )
    ]
