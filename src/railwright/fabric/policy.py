"""The contract as the policy of one host, so that classes and cables are stated once."""

from __future__ import annotations

from typing import Any

from railwright.node.model import to_json

from .contract import Contract

# What a template in an inventory calls to get it.
FILTER = "lossless_policy"


def host_policy(contract: Contract, host: str) -> dict[str, Any]:
    """`policy.lossless` of a host, by its inventory name: the classes, and the cables of its own ports.

    A speed is given where all of its ports have one; a contract of several lossless or strict classes leaves it to the
    policy to name the ones of RoCE (`data`, `notifications`).
    """
    ports = [
        plug for switch in contract.switches.values() for plug in switch.ports.values() if plug.host == host
    ]
    speeds = {contract.speed(plug) for plug in ports}
    return {
        "classes": {name: to_json(one) for name, one in contract.classes.items()},
        "default_prio": contract.default_prio,
        "cables": {plug.nic: contract.cable(plug) for plug in ports},
        **({"speed_gbps": speeds.pop()} if len(speeds) == 1 else {}),
    }
