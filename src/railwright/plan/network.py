"""What NIC, network and NCCL have to agree on, and no node can see of the network: adaptive routing and SHARP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from ..node.model import Finding, NetworkPlan, Nic, Policy

_ROUTING, _COLLNET = "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_COLLNET_ENABLE"
# NVIDIA's NVCONFIG name (ConnectX-6 and later): adaptive routing for RDMA over Ethernet. InfiniBand has no such switch.
_NIC_ROUTING = "ROCE_ADAPTIVE_ROUTING_EN"


def agree(policy: Policy, rails: Sequence[Nic]) -> tuple[NetworkPlan, tuple[Finding, ...]]:
    """What holds for the network of these rail ports, and where the policy contradicts itself or the rails."""
    layer = _link_layer(rails)
    routing = policy.network.adaptive_routing
    sharp = False if layer in ("Ethernet", "mixed") else policy.network.sharp
    firmware = {} if routing is None or layer != "Ethernet" else {_NIC_ROUTING: str(int(routing))}
    said = [
        "whether the network routes adaptively the policy does not say"
        if routing is None
        else f"adaptive routing {'on' if routing else 'off'} in the network, as the policy says, so in NCCL too"
        + (" and in the NICs" if firmware else "")
    ]
    if sharp is None:
        said.append("whether an aggregation manager serves the network (SHARP) the policy does not say")
    elif layer == "InfiniBand":
        said.append(f"SHARP {'on' if sharp else 'off'}, as the policy says")
    else:
        said.append("no SHARP: it is InfiniBand's")
    network = NetworkPlan(layer, routing, sharp if rails else None, firmware, "; ".join(said))
    findings = (
        *_routing_differs(policy, layer),
        *_firmware_differs(policy, layer, rails),
        *_sharp_differs(policy, layer),
    )
    return network, findings


def variables(policy: Policy, network: NetworkPlan) -> dict[str, str]:
    """NCCL's variables that follow; none for what is unknown, and none over the policy's own."""
    told = {}
    if network.adaptive_routing is not None:
        # NCCL's default is 1 on InfiniBand and 0 on Ethernet (src/transport/net_ib/init.cc:441).
        told[_ROUTING] = str(int(network.adaptive_routing))
    if network.sharp:
        told[_COLLNET] = "1"
    return {name: value for name, value in told.items() if name not in policy.nccl.env}


def _link_layer(rails: Sequence[Nic]) -> Optional[str]:
    layers = {nic.link_layer for nic in rails}
    if not layers or None in layers:
        return None
    return layers.pop() if len(layers) == 1 else "mixed"


def _routing_differs(policy: Policy, layer: Optional[str]) -> Iterator[Finding]:
    asked, routing = policy.nccl.env.get(_ROUTING), policy.network.adaptive_routing
    if asked not in ("0", "1"):
        return
    if routing is not None and asked != str(int(routing)):
        yield Finding(
            "network.adaptive_routing",
            "warning",
            f"policy.nccl.env.{_ROUTING}",
            f"NCCL is told {asked}, and the policy says that the network {'routes' if routing else 'does not route'} "
            "adaptively: packets out of order, or a fabric half used",
            f"take {_ROUTING} out of policy.nccl.env, or correct policy.network.adaptive_routing",
        )
    if routing is None and asked == "1" and layer in ("Ethernet", "mixed"):
        yield Finding(
            "network.adaptive_routing",
            "warning",
            f"policy.nccl.env.{_ROUTING}",
            "NCCL is told to route adaptively over Ethernet, and the policy does not say that network and NICs do",
            f"say it in policy.network.adaptive_routing, or take {_ROUTING} out",
        )


def _firmware_differs(policy: Policy, layer: Optional[str], rails: Sequence[Nic]) -> Iterator[Finding]:
    routing = policy.network.adaptive_routing
    if routing is None or layer != "Ethernet":
        return
    other = [nic for nic in rails if nic.adaptive_routing not in (None, routing)]
    if other:
        yield Finding(
            "network.adaptive_routing",
            "warning",
            ", ".join(nic.name for nic in other),
            (
                "the policy says that the network routes adaptively, and in these NICs it is off: they take packets "
                "out of order for lost ones"
                if routing
                else "the policy says that the network does not route adaptively, and in these NICs it is on"
            ),
            f"drain the node, `mstconfig -d {other[0].address or other[0].name} set {_NIC_ROUTING}={int(routing)}` on "
            "each, and reset them; or correct policy.network.adaptive_routing",
        )


def _sharp_differs(policy: Policy, layer: Optional[str]) -> Iterator[Finding]:
    if layer not in ("Ethernet", "mixed"):
        return
    asked = "policy.network.sharp" if policy.network.sharp else None
    if policy.nccl.env.get(_COLLNET) == "1":
        asked = f"policy.nccl.env.{_COLLNET}"
    if asked is not None:
        rails = "Ethernet" if layer == "Ethernet" else "not all InfiniBand"
        yield Finding(
            "network.sharp",
            "warning",
            asked,
            f"SHARP is asked for, and the rails are {rails}: no switch can reduce for them",
            f"take {asked} out",
        )
